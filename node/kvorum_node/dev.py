"""`python -m kvorum_node.dev`: the command line of `dev_cluster`. A module of its own, because importing that takes a
while: Ctrl-C meanwhile ends the process as it ends other programs, without a traceback."""

import signal
import sys


def main() -> int:
    """See `dev_command.main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .dev_command import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
