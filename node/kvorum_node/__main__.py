"""`python -m kvorum_node --config FILE`."""

import sys

from .main import main

sys.exit(main())
