"""The `kvorum` command. Needs the extra `cli`; only `main` is here, so that a missing extra can be told in one line."""

import io
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    try:
        from kvorum.cli.group import kvorum
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print('kvorum: the command line needs the extra "cli": pip install "kvorum[cli]"', file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal has no signs for, as Python writes it
    kvorum()
