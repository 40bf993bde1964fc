"""Run while an image is built: ends with an error unless this is the Python that $PYTHON_VERSION asks for."""

import os
import sys

wanted = os.environ.get("PYTHON_VERSION", "")
found = ".".join(map(str, sys.version_info[:3]))
if not (found == wanted or found.startswith(f"{wanted}.")) or not wanted:
    sys.exit(
        f"the {sys.argv[1]} stage's base image has Python {found}, PYTHON_VERSION asks for {wanted or 'none'}:"
        " set --build-arg BASE_IMAGE or PYTHON_VERSION so that they agree"
    )
print(f"Python {found}")
