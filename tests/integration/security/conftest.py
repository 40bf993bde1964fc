"""Three nodes that ask for tokens, and attackers who speak the protocol by hand."""

from tests.integration.auth.conftest import cluster, root

__all__ = ["cluster", "root"]
