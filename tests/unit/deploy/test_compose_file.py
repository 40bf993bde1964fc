"""compose.yaml, Dockerfile and .dockerignore say what they must; whether they work is shown by scripts/compose-test."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_every_port_is_published_on_the_loopback_and_once(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert len(published) >= 8
    places = []
    for port in published:
        host, outside, _ = port.rsplit(":", 2)
        assert host == "127.0.0.1", port
        places.append(outside)
    assert len(set(places)) == len(places)


def test_no_service_is_root_or_may_write_to_its_image_or_gain_rights(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["user"].split(":")[0] not in ("0", "root", ""), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged") and not service.get("cap_add"), name


def test_every_image_can_be_chosen_by_a_variable(compose: dict[str, Any]) -> None:
    wanted = {"prometheus": "PROMETHEUS_IMAGE", "grafana": "GRAFANA_IMAGE"}
    for name, service in compose["services"].items():
        variable = wanted.get(name, "KVORUM_IMAGE")
        assert service["image"].startswith(f"${{{variable}:-"), name
        assert not service["image"].rstrip("}").endswith((":latest", variable)), "a version is named"


def test_nodes_differ_in_nothing_but_their_names_ports_and_volumes(compose: dict[str, Any]) -> None:
    seen = []
    for node in NODES:
        service = dict(compose["services"][node])
        environment = dict(service.pop("environment"))
        assert environment.pop("KVORUM_NODE_ID") == service.pop("hostname") == node
        assert service.pop("volumes")[0] == f"{node}-data:/var/lib/kvorum"
        assert len(service.pop("ports")) == 2
        seen.append((service, {key: str(value).replace(node, "nX") for key, value in environment.items()}))
        members = compose["services"][node]["environment"]["KVORUM_MEMBERS"].split(",")
        assert members == [f"{other}={other}:7403/{other}:7401" for other in NODES]
    settings = [
        (service, {k: v for k, v in env.items() if k not in ("KVORUM_MEMBERS", "KVORUM_URL")}) for service, env in seen
    ]
    assert settings[0] == settings[1] == settings[2]


def test_what_ends_by_itself_is_waited_for_or_lingers(compose: dict[str, Any]) -> None:
    """`up --wait` takes an end before it has looked for a failure, unless another service waits for that end."""
    services = compose["services"]
    awaited = {
        name
        for service in services.values()
        for name, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_completed_successfully"
    }
    ends = {name for name, service in services.items() if service["restart"] in ("no", "on-failure")}
    assert ends == {"setup", "auth"}
    assert all("sleep 5" in services[name]["entrypoint"][-1] for name in ends - awaited)
    assert "setup" in awaited


def test_only_setup_has_the_authoritys_key(compose: dict[str, Any]) -> None:
    having = [
        name
        for name, service in compose["services"].items()
        if any(str(volume).startswith("ca:") for volume in service.get("volumes", ()))
    ]
    assert having == ["setup"]
    for node in (*NODES, "prometheus"):
        assert "secrets:/etc/kvorum:ro" in compose["services"][node]["volumes"]


def test_what_is_mounted_from_here_is_there(compose: dict[str, Any]) -> None:
    folders = [
        volume.split(":")
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(folders) >= 3
    for source, _, mode in folders:
        assert any((ROOT / source).rglob("*.*")) and mode == "ro", source
    named = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
        if not volume.startswith(".")
    }
    assert named == set(compose["volumes"])


def test_nodes_speak_tls_to_all_with_their_own_certificates(compose: dict[str, Any]) -> None:
    for node in NODES:
        environment = compose["services"][node]["environment"]
        for what in ("TLS", "PEER"):
            assert environment[f"KVORUM_{what}_CERT"] == f"/etc/kvorum/{node}/tls.pem"
            assert environment[f"KVORUM_{what}_KEY"] == f"/etc/kvorum/{node}/tls.key"
        assert environment["KVORUM_PEER_CA"] == "/etc/kvorum/ca.pem"
        assert "KVORUM_INSECURE" not in environment


def test_nodes_start_after_setup_and_have_time_to_hand_over(compose: dict[str, Any]) -> None:
    for node in NODES:
        service = compose["services"][node]
        assert service["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}
        assert int(service["stop_grace_period"].removesuffix("s")) > 10, "a node gives itself 10 s (STOP_PATIENCE)"


def test_the_image_needs_no_root_no_debian_package_and_no_extension_of_a_builder() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "ARG BASE_IMAGE=python:3.12-slim" in text and "FROM ${BASE_IMAGE}" in text
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["10001:10001"]
    assert "STOPSIGNAL SIGTERM" in text and "HEALTHCHECK" in text
    for extension in ("# syntax", "--mount", "apt-get", "<<EOF"):
        assert extension not in text
    assert text.count("check_python.py") == 4, "both stages look at their Python"
    for install in re.findall(r"pip \S* ?\S* ?(?:install|wheel) .*", text):
        assert "--require-hashes" in install or "--no-index" in install, install


def test_a_build_gets_only_what_it_needs() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert all(any(source == one or source.startswith(f"{one}/") for one in allowed) for source in sources)
    assert not any(one.startswith((".git", "tests")) for one in allowed)


@pytest.mark.parametrize("name", ["image", "image-build", "compose"])
def test_what_is_installed_is_pinned_with_hashes_and_names_no_registry(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    pinned = re.findall(r"^[\w.-]+==\S+ \\\n    --hash=sha256:", text, re.MULTILINE)
    assert pinned and len(pinned) == len(re.findall(r"^[a-zA-Z]", text, re.MULTILINE))
    assert "://" not in text and "--index" not in text


def test_what_is_shipped_is_what_was_tested() -> None:
    def versions(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE))

    tested, shipped = versions("dev"), versions("image")
    assert shipped and {package: tested.get(package) for package in shipped} == shipped


def test_the_image_gets_everything_that_a_node_and_the_command_line_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [Requirement(text) for text in (*project["dependencies"], *extras["node"], *extras["cli"])]
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/image.txt").read_text(), re.MULTILINE))
    assert len(needed) > 10
    for one in needed:
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), one
