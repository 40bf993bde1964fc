"""`python -m kvorum_node --config FILE`."""

import signal
import sys

# While this is imported Ctrl-C ends the process as it ends other programs, without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from .main import main

sys.exit(main())
