"""The embedded database: the one place of the client that reaches into the node, and only when a folder is opened."""

from kvorum.backend import Backend


async def open_embedded(path: str | None) -> Backend:
    """Open or create the database in a folder; None: a private one that is removed at close.

    Errors: ModuleNotFoundError without the extra `node`; DatabaseLocked, DatabaseCorrupt, InvalidArgument, OSError.
    """
    try:
        from kvorum_node.embedded import open_embedded as open_backend
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'an embedded database needs the extra "node": pip install "kvorum[node]" ({error})', name=error.name
        ) from error
    return await open_backend(path)
