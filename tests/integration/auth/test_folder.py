"""A database in a folder has no tokens."""

from pathlib import Path

import pytest

import kvorum
from kvorum.errors import InvalidArgument


async def test_whoever_opens_a_folder_may_do_everything(tmp_path: Path) -> None:
    async with kvorum.open_kv(str(tmp_path / "app.kv")) as kv:
        for call in (kv.auth.on(), kv.auth.off(), kv.auth.create("x", read=[()]), kv.auth.list(), kv.auth.show("x")):
            with pytest.raises(InvalidArgument, match="has no tokens"):
                await call
        assert (await kv.auth.whoami()).root
        await kv.set(("a",), 1)
