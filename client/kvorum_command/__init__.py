"""Where the command `kvorum` begins, and ends.

Outside of the package, because importing that takes a while. Ctrl-C meanwhile, and until a command's own work begins,
ends the process as it ends other programs, and leaves no traceback of whatever was just imported.
"""

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvorum.cli import main as run
    from kvorum.cli.interrupts import ENDED

    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int) and end.code in ENDED:
            os._exit(end.code)  # Python would wait for threads, which may wait for what has just been given up
        raise
