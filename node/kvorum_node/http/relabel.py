"""Values that Deno 2.8 and newer wrote, shown to clients that cannot read them.

Version 16 of V8's format differs from 15 only in allowing buffers of 4 GiB and more; below that the bytes after the
header are the same, and a value here has at most 64 KiB. So writing 15 into the header of what is *sent* loses nothing.
What is stored stays as it was written.

Who needs it is told by what they send. Deno names its version, and reads 16 from 2.8 on. Everybody else that is known
(Node up to 26, PyPI denokv) does not, and a reader of 16 reads 15 as well: so everybody else gets 15.
"""

import re
from typing import Final

_HEADER_16: Final = b"\xff\x10"
_HEADER_15: Final = b"\xff\x0f"
_DENO: Final = re.compile(r"\bDeno/(\d{1,6})\.(\d{1,6})")
_READS_16: Final = (2, 8)


def relabel(value: bytes) -> bytes:
    """A V8 value of version 16 as one of 15; all others as they are."""
    return _HEADER_15 + value[2:] if value[:2] == _HEADER_16 else value


def wanted(mode: str, user_agent: str) -> bool:
    """Whether a client is to see 15 instead of 16."""
    if mode != "auto":
        return mode == "always"
    found = _DENO.search(user_agent)
    return found is None or (int(found[1]), int(found[2])) < _READS_16
