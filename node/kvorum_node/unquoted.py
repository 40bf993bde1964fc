"""What a library says of an error, for logs and messages, without what it quotes: that may be a header with a token, or
an address with a password."""

import re
from typing import Final

_QUOTED: Final = re.compile(r"""\s*[^\s"']*["'].*""", re.DOTALL)
_LOOKED_AT: Final = 1_000
_SHOWN: Final = 200
"""Characters."""


def unquoted(error: Exception) -> str:
    """The first line of its text, up to what is quoted in it."""
    lines = str(error).splitlines() or [""]
    return _QUOTED.sub(" …", lines[0][:_LOOKED_AT])[:_SHOWN].strip()
