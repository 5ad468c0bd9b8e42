"""What goes to a browser: small, without markup from data, and vendored files that are those of their packages."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from lgov_core.commands import cli
from tests.peers import ROOT

STATIC: Final = ROOT / "lgov_core" / "views" / "web" / "static"
VENDOR: Final = STATIC / "vendor"
ASSETS: Final = Path(__file__).parent / "assets"
OWN: Final = sorted(path for path in STATIC.rglob("*.js") if path.parent != VENDOR)
SENT: Final = sorted(path for path in STATIC.rglob("*") if path.suffix in {".html", ".css", ".js", ".svg"})
_MARKUP: Final = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "dangerouslySetInnerHTML",
    "document.write",
    "eval(",
    "Function(",
)
_IMPORT: Final = re.compile(r'^(?:import|export)\b[^;]*?\bfrom\s*"([^"]+)"|^import\s*"([^"]+)"', re.MULTILINE)


def packages() -> list[tuple[Path, str, dict[str, Any]]]:
    return [
        (folder, name, package)
        for folder in (VENDOR, ASSETS)
        for name, package in json.loads((folder / "packages.json").read_text("utf-8")).items()
    ]


def test_all_that_goes_to_a_browser_is_small() -> None:
    size = sum(len(gzip.compress(path.read_bytes(), 9)) for path in SENT)
    assert size <= 120_000, f"{size} bytes gzipped"


@pytest.mark.parametrize(
    ("folder", "name", "package"), packages(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_vendored_files_are_those_of_the_package(folder: Path, name: str, package: dict[str, Any]) -> None:
    for file, origin in package["files"].items():
        text = (folder / file).read_bytes()
        if change := origin.get("changed"):
            text = text.replace(change["to"].encode(), change["from"].encode())
        assert hashlib.sha256(text).hexdigest() == origin["sha256"], f"{name}: {file} differs from {origin['from']}"


def test_every_vendored_file_is_on_record_with_a_licence() -> None:
    on_record = {folder / file for folder, _, package in packages() for file in package["files"]}
    there = {path for folder in (VENDOR, ASSETS) for path in folder.iterdir() if path.name != "packages.json"}
    assert there == on_record
    assert all(any(file.endswith(".LICENSE") for file in package["files"]) for _, _, package in packages())


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_code_makes_no_markup_and_runs_no_text(path: Path) -> None:
    text = path.read_text("utf-8")
    for name in _MARKUP:
        assert name not in text
    assert "javascript:" not in text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_modules_are_short_and_import_files_that_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 180
    assert "import(" not in text
    for target in (one or other for one, other in _IMPORT.findall(text)):
        assert target.startswith("."), target
        assert (path.parent / target).is_file(), target


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    page = (STATIC / "index.html").read_text("utf-8")
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page) is None


def test_the_page_names_commands_for_browsers_without_scripts() -> None:
    page = (STATIC / "index.html").read_text("utf-8")
    for path in re.findall(r"lgov ([a-z ]+)[,.]", page):
        group, _, command = path.partition(" ")
        found = cli.commands[group]  # type: ignore[attr-defined]
        assert not command or command in found.commands
