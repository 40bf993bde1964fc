"""Where the state lives: the live environment, those before it that are still read from, the one that may come next.

A state is replaced by renaming folders: `state` becomes `state.old-<n>`, `state.new` becomes `state`. A crash between
the two leaves no `state`, which is a new one at index 0; whatever else is left over is deleted at the next start. Both
are safe because the state of a replica is only a cache of a checkpoint and the log.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from kvorum.errors import DatabaseCorrupt
from kvorum_raft.seams import StateFacts

from . import images
from .environment import Environment
from .errors import Damaged, StoreFault
from .files import Pause
from .holders import Holder
from .images import Image, OpenEnv, Prepared

_log = logging.getLogger(__name__)

_META_PAGES: Final = 2
_RESERVE: Final = 16 << 20
_FREE_LIST_SHARE: Final = 256
"""Free pages that a page of the list of free ones can name, at least."""

MakeEnvironment = Callable[[Path], Environment]


def run_in_thread(job: Callable[[], None]) -> None:
    """Unmapping and deleting a large file takes too long for the event loop."""
    threading.Thread(target=job, name="kvorum-old-state").start()


class Space(NamedTuple):
    """What is used of the room that a state can ever take, in bytes."""

    used_bytes: int
    map_bytes: int

    @property
    def margin_bytes(self) -> int:
        """What growth may still take; a reserve is left to deletes: each write, a delete too, first copies the pages
        that it changes. Negative once the reserve is in use."""
        reserve = min(max(self.map_bytes // 20, _RESERVE), self.map_bytes // 4)
        return self.map_bytes - self.used_bytes - reserve

    @property
    def low(self) -> bool:
        """Growth must be refused."""
        return self.margin_bytes < 0


class Home:
    """One store's folders. `make` makes an Environment for a folder, `run_aside` carries out what is too slow for the
    event loop and need not be waited for."""

    def __init__(
        self, path: Path, make: MakeEnvironment, open_env: OpenEnv, run_aside: Callable[[Callable[[], None]], None]
    ) -> None:
        self.path = path
        self._make = make
        self._open_env = open_env
        self._run_aside = run_aside
        self.live = Holder(make(path), self._dispose)
        self._prepared: Prepared | None = None
        self._retired = 0

    @property
    def environment(self) -> Environment:
        return self.live.environment

    def enter(self) -> Holder:
        """The live environment, to read from; the caller leaves it."""
        while True:
            live = self.live
            if live.enter():
                return live

    def space(self) -> Space:
        """Pages that were used and are free again count as room only while nobody reads: LMDB does not touch those that
        a reader may still see, and which these are it does not tell."""
        live = self.live
        info, page = live.env.info(), live.env.stat()["psize"]
        reached = info["last_pgno"] + 1
        if not live.users:
            free = reached - pages_in_use(live.env)
            reached -= max(0, free - free // _FREE_LIST_SHARE - 1)
        return Space(max(0, reached) * page, info["map_size"])

    def image(self) -> Image:
        return Image(self.enter())

    def inspect(self, file: Path) -> StateFacts:
        return images.inspect(file, self._open_env)

    def prepare(self, file: Path, pause: Pause | None) -> Prepared:
        """See `Store.prepare`. One that was prepared before, and not adopted, is discarded."""
        self.inspect(file)
        environment = self._next()
        try:
            environment.open_copy(file, pause)
            return self._keep(environment)
        except (DatabaseCorrupt, Damaged) as error:
            raise ValueError(str(error)) from error
        except (StoreFault, lmdb.Error) as error:
            raise OSError(f"{file} cannot be made the state: {error}") from error

    def prepare_empty(self) -> Prepared:
        environment = self._next()
        environment.open_empty()
        return self._keep(environment)

    def _next(self) -> Environment:
        if self.environment.durable:
            raise ValueError("an embedded database is its own truth: it cannot be replaced")
        if self._prepared is not None:
            self._prepared.discard()
            self._prepared = None
        return self._make(self.path.with_name(self.path.name + ".new"))

    def _keep(self, environment: Environment) -> Prepared:
        try:
            self._prepared = Prepared(environment)
        except BaseException:
            environment.destroy()
            raise
        return self._prepared

    def adopt(self, prepared: Prepared) -> None:
        """Make it the live one."""
        if prepared is not self._prepared:
            raise ValueError("the prepared state is not this store's, or another one was prepared after it")
        old = self.live
        coming = prepared.take()
        self._prepared = None
        try:
            self._retired += 1
            old.environment.move(self.path.with_name(f"{self.path.name}.old-{self._retired}"))
            coming.move(self.path)
            coming.sync_parent()
        except OSError as error:
            # neither folder can be judged from here; the next start can
            coming.close(clean=False)
            raise StoreFault(f"the state in {self.path} cannot be replaced: {error}") from error
        self.live = Holder(coming, self._dispose)
        old.retire()

    def _dispose(self, environment: Environment) -> None:
        self._run_aside(lambda: _destroy(environment))

    def close(self, *, clean: bool) -> None:
        """Close the live environment. Those that are still read from stay open; the next start deletes them."""
        try:
            if self._prepared is not None and clean:
                self._prepared.discard()
            elif self._prepared is not None and self._prepared.environment is not None:
                self._prepared.take().close(clean=False)
        finally:
            self._prepared = None
            self.environment.close(clean=clean)


def pages_in_use(env: lmdb.Environment) -> int:
    """The tree's pages and LMDB's two meta pages."""
    stat = env.stat()
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + _META_PAGES


def _destroy(environment: Environment) -> None:
    try:
        environment.destroy(gradually=True)
    except OSError as error:
        _log.warning("cannot delete the old state in %s: %s", environment.path, error)
