"""`python -m kvorum.cli`."""

from kvorum.cli import main

main()
