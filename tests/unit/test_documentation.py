"""The pages made from the source, the page of the Python interface, and what is looked for in the built pages."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import griffe
import pytest
import yaml

import kvorum
import kvorum.sync
from kvorum_node.config import SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {"errors", "limits", "KvorumError", "__version__"}
"""Names that the page of the Python interface tells of in its own words."""


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("maker", "page"), [("_configuration", "configuration.md"), ("_cli_page", "cli.md")])
def test_generated_pages_are_what_the_source_says(maker: str, page: str) -> None:
    assert (DOCS / page).read_text() == script(maker).page()


def test_the_page_of_settings_has_each_of_them_once() -> None:
    text = (DOCS / "configuration.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)[-len(SETTINGS) :] == [setting.name for setting in SETTINGS]


def test_the_page_of_commands_has_each_of_them_and_its_options() -> None:
    text = (DOCS / "cli.md").read_text()
    commands = dict(script("_cli_page").commands())
    assert len(commands) >= 40
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == list(commands)
    for command in commands.values():
        for option in command.params:
            if option.param_type_name == "option":
                assert option.opts[0] in text


def test_every_public_name_is_on_the_page_of_the_interface() -> None:
    text = (DOCS / "api.md").read_text()
    shown = re.findall(r"^::: kvorum\.(\w+)$", text, re.MULTILINE)
    assert sorted(set(shown) - {"sync"} | ELSEWHERE) == sorted(kvorum.__all__)
    assert len(shown) == len(set(shown))
    assert all(f"kvorum.{name}" in text for name in ELSEWHERE)


def test_every_public_name_and_method_is_documented() -> None:
    package = griffe.load("kvorum", search_paths=[str(ROOT / "client")], resolve_aliases=True)
    bare = []
    for owner, names in ((package, kvorum.__all__), (package["sync"], kvorum.sync.__all__)):
        for name in names:
            one = owner[name]
            if not one.has_docstring and name != "__version__":
                bare.append(one.path)
            if one.kind is griffe.Kind.CLASS:
                methods = [member for member in one.all_members.values() if member.kind is griffe.Kind.FUNCTION]
                bare += [method.path for method in methods if method.name[0] != "_" and not method.has_docstring]
    assert bare == []


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        assert not isinstance(parts, object.__class__)
        return [page for part in parts for page in pages(part)]  # type: ignore[attr-defined]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(pages(settings["nav"])) == sorted(page.name for page in DOCS.glob("*.md"))
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False


def test_what_a_page_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    foreign = script("_docs").foreign
    (tmp_path / "style.css").write_text(
        "@import url('https://fonts.example/a.css'); a { background: url(//x.example/i) }"
    )
    (tmp_path / "page.html").write_text(
        '<link rel="stylesheet" href="https://cdn.example/a.css"><link rel="canonical" href="https://kvorum.example/">'
        '<script src="//cdn.example/a.js"></script><img src="http://x.example/a.png"><a href="https://x.example">x</a>'
        '<script src="assets/a.js"></script><img src="data:image/png;base64,AA==">'
    )
    assert foreign(tmp_path) == [
        "page.html: https://cdn.example/a.css",
        "page.html: //cdn.example/a.js",
        "page.html: http://x.example/a.png",
        "style.css: https://fonts.example/a.css",
        "style.css: //x.example/i",
    ]


def test_links_to_the_source_are_shown_as_its_names() -> None:
    shown = script("_docs_hooks").on_page_markdown
    page = SimpleNamespace(file=SimpleNamespace(src_uri="queues.md"))
    assert shown("see [the code](../a/b.py#L3), [x](limits.md)", page=page) == "see the code (`a/b.py`), [x](limits.md)"
    assert shown("[examples/a.py](../examples/a.py)", page=page) == "`examples/a.py`"
