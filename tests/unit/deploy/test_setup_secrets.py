"""The one-shot service of compose.yaml."""

import stat
from pathlib import Path

import pytest

from deploy.image import setup_secrets
from kvorum import certificates


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CA", "SHARED"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(setup_secrets, name, tmp_path / name)
    monkeypatch.delenv("KVORUM_SETUP_HOSTS", raising=False)
    return tmp_path / "SHARED"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_first_run_makes_everything_and_the_next_one_changes_nothing(shared: Path) -> None:
    setup_secrets.main()
    first = content(shared.parent)
    pairs = {f"SHARED/{node}/tls.{kind}" for node in ("n1", "n2", "n3") for kind in ("pem", "key")}
    others = {"SHARED/ca.pem", "SHARED/root_token", "SHARED/kv_connect_token", "CA/ca.pem", "CA/ca.key"}
    others |= {"SHARED/grafana_password"}
    assert first.keys() == pairs | others
    for name in first:
        mode = stat.S_IMODE((shared.parent / name).stat().st_mode)
        assert mode == (0o644 if name.endswith((".pem", "grafana_password")) else 0o600), name
    assert first["SHARED/root_token"] != first["SHARED/kv_connect_token"]
    assert len(first["SHARED/root_token"].strip()) >= 43
    setup_secrets.main()
    assert content(shared.parent) == first


def test_certificates_name_their_node_and_the_hosts_by_which_it_is_reached(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_secrets.main()
    facts = certificates.show(shared / "n2/tls.pem")[0]
    assert (facts["node"], facts["dns"], facts["ip"]) == (["n2"], ["n2", "localhost"], ["127.0.0.1", "::1"])
    before = content(shared)
    monkeypatch.setenv("KVORUM_SETUP_HOSTS", "kv.example, 10.0.0.7")
    setup_secrets.main()
    facts = certificates.show(shared / "n2/tls.pem")[0]
    assert "kv.example" in facts["dns"] and "10.0.0.7" in facts["ip"]
    after = content(shared)
    assert {name for name in after if after[name] != before[name]} == {
        f"{node}/tls.{kind}" for node in ("n1", "n2", "n3") for kind in ("pem", "key")
    }


def test_a_certificate_that_ends_soon_or_is_of_another_authority_is_made_anew(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_secrets.main()
    before = content(shared)
    monkeypatch.setattr(setup_secrets, "RENEW", certificates.DAYS + 1)
    setup_secrets.node("n1", [])
    monkeypatch.undo()
    for name in ("CA", "SHARED"):
        monkeypatch.setattr(setup_secrets, name, shared.parent / name)
    soon = content(shared)
    assert {name for name in soon if soon[name] != before[name]} == {"n1/tls.pem", "n1/tls.key"}
    (shared.parent / "CA/ca.key").unlink()
    setup_secrets.main()
    anew = content(shared)
    kept = {"root_token", "kv_connect_token", "grafana_password"}
    assert {name for name in anew if anew[name] == soon[name]} == kept


def test_a_run_that_was_interrupted_is_made_good(shared: Path) -> None:
    (shared / "n1").mkdir()
    (shared / "n1/.tls.key.new").write_bytes(b"half")
    (shared / "n1/tls.key").write_bytes(b"of a pair")
    setup_secrets.main()
    assert b"PRIVATE KEY" in (shared / "n1/tls.key").read_bytes()
    assert not (shared / "n1/.tls.key.new").exists()
