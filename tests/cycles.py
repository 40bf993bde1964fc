"""What only the collector of cycles would free: objects that keep each other.

An error that fails a future is held by it, and holds the frames it went through; a frame that holds the future makes
that a ring, with everything else in it: rows that were read, a request's body. The collector comes by when there are
enough new objects, however large they are, so a node could hold GiB of them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def rings(of: str = "kvorum") -> Iterator[list[str]]:
    """Fills the list, at the end, with the functions whose frames were left in such a ring, of modules whose names
    begin like that."""
    found: list[str] = []
    enabled, flags = gc.isenabled(), gc.get_debug()
    gc.disable()
    gc.collect()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left, gc.garbage[:] = gc.garbage[:], []
        frames = [one for one in left if isinstance(one, FrameType)]
        found += [frame.f_code.co_qualname for frame in frames if frame.f_globals.get("__name__", "").startswith(of)]
    finally:
        gc.set_debug(flags)
        if enabled:
            gc.enable()
