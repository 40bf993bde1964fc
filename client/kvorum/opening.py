"""A database about to be opened."""

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from kvorum.kv import Kv

_HOW: Final = (
    "this database is not open yet: use `async with kvorum.open_kv(…) as kv`, or `kv = await kvorum.open_kv(…)`;"
    " kvorum.sync.open_kv is for code without asyncio"
)


class Opening:
    """A database about to be opened: await it, or enter it with `async with`, once. Made by `open_kv`."""

    def __init__(self, open_it: "Callable[[], Awaitable[Kv]]") -> None:
        self._open: Callable[[], Awaitable[Kv]] | None = open_it
        self._kv: Kv | None = None

    def __await__(self) -> "Generator[Any, None, Kv]":
        open_it, self._open = self._open, None
        if open_it is None:
            raise RuntimeError("this database was opened already; call open_kv again")
        return open_it().__await__()

    async def __aenter__(self) -> "Kv":
        self._kv = await self
        return self._kv

    async def __aexit__(self, *_: object) -> None:
        assert self._kv is not None
        await self._kv.close()

    if not TYPE_CHECKING:  # type checkers know that it is no Kv, and shall go on saying so

        def __getattr__(self, name: str) -> NoReturn:
            # Protocols such as copying ask for special methods and attributes, and mean nothing by it.
            raise AttributeError(f"no {name!r}" if name.startswith("_") else f"no {name!r}: {_HOW}")

        def __enter__(self) -> NoReturn:
            raise TypeError(_HOW)

        def __exit__(self, *_: object) -> None:
            """Never: there is no way in."""
