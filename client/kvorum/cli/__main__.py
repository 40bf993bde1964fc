"""`python -m kvorum.cli`."""

from kvorum_command import main

main()
