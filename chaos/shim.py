"""Wrong clocks and bad syncs of single nodes: a small library that is loaded into them, and a file to command it.

`shim.c` is built by the compiler of this machine into the folder of the run. Each node has a control file, which
outlives its processes. The counters tell whether what was ordered has had any effect.
"""

import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
COMPILER: Final = "cc"
_PATIENCE: Final = 60.0
_SIZE: Final = 4_096
_OFFSET, _DELAY, _FAILING, _ASKED, _DELAYED, _FAILED = range(6)
"""Fields of the control file, eight bytes each."""


class Shim:
    """The library, for one node. Errors of all methods: OSError."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(_SIZE))
        with file.open("r+b") as opened:
            self._fields = mmap.mmap(opened.fileno(), _SIZE)
        self.environment: Final = {"LD_PRELOAD": str(library), "CHAOS_SHIM": str(file)}
        """For the processes of that node."""

    def set_clock(self, seconds: float) -> None:
        """So far off is the wall clock from now on."""
        self._put(_OFFSET, int(seconds * 1e9))

    def delay_syncs(self, seconds: float) -> None:
        """So long does each sync wait from now on."""
        self._put(_DELAY, int(seconds * 1e9))

    def fail_syncs(self, number: int) -> None:
        """So many syncs fail from now on, with EIO."""
        self._put(_FAILING, number)

    @property
    def asked(self) -> int:
        """Times that the clock told a wrong time."""
        return self._get(_ASKED)

    @property
    def delayed(self) -> int:
        """Syncs."""
        return self._get(_DELAYED)

    @property
    def failed(self) -> int:
        """Syncs."""
        return self._get(_FAILED)

    def _put(self, field: int, value: int) -> None:
        struct.pack_into("=q", self._fields, 8 * field, value)

    def _get(self, field: int) -> int:
        value: int = struct.unpack_from("=q", self._fields, 8 * field)[0]
        return value


def build(folder: Path) -> Path:
    """Compile it. Returns the library. Errors: OSError, CalledProcessError."""
    library = folder / "shim.so"
    command = [COMPILER, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    return library


def environment_with(shim: Shim | None) -> dict[str, str]:
    """That of this process, and the shim's."""
    return dict(os.environ) | ({} if shim is None else shim.environment)
