"""What a process leaves behind that was killed by a fault of its own: `<data>/CRASH`.

Damaged pages can make LMDB end the process (an assertion, or a page that is not there), and they would do so again at
the next start, since the state itself looks sound until the page is read. The interpreter writes its traceback into
this file when it dies of such a signal; somebody else's `kill -9` leaves it empty, and costs no rebuild.
"""

import faulthandler
import logging
from pathlib import Path
from typing import IO, Final

FILE: Final = "CRASH"
_SHOWN: Final = 2000
logger = logging.getLogger("kvorum.node")


class CrashFile:
    """`watch` first looks at what the process before this one left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: IO[bytes] | None = None

    def watch(self) -> bool:
        """From now on this process would leave a trace. True if the one before it did. Raises OSError."""
        crashed = self._path.exists() and self._path.stat().st_size > 0
        if crashed:
            with self._path.open("rb") as left:
                trace = left.read(_SHOWN).decode(errors="replace")
            logger.critical("the process before this one crashed, so its state is not trusted: %s", trace)
        self._file = self._path.open("ab", buffering=0)
        faulthandler.enable(self._file, all_threads=False)
        return crashed

    def clear(self) -> None:
        """What was found has had its effect. Raises OSError."""
        if self._file is not None:
            self._file.truncate(0)

    def close(self) -> None:
        if self._file is not None:
            faulthandler.disable()
            self._file.close()
            self._file = None
