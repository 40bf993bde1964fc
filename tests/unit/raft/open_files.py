"""What a test's process has open."""

from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Names of the open files in a folder."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            path = fd.readlink()
        except FileNotFoundError:  # of the listing itself
            continue
        if path.is_relative_to(folder):
            found.append(path.name)
    return found
