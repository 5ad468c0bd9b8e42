"""Every code block of the documents is right by its kind, and every program runs here or in the test that names its page."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from lgov_core._util.schema import read_yaml
from lgov_core.audit.signing import make_key
from lgov_core.commands import cli
from lgov_core.train.settings import load_train_settings
from lgov_core.types import Action, Effect, Point
from tests.confine.conftest import why_not
from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.M | re.S)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def blocks(*languages: str) -> list[Any]:
    """The blocks of all pages in these languages, each with its page."""
    return [
        pytest.param(textwrap.dedent(text), id=f"{path.relative_to(ROOT)}:{number}")
        for path in PAGES
        for number, (_, language, text) in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")))
        if language in languages
    ]


@pytest.mark.parametrize("text", blocks("python", "py"))
def test_a_program_is_python_and_what_it_imports_is_there(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lgov_"):
            module = import_module(node.module or "")
            names = [one.name for one in node.names if not hasattr(module, one.name)]
            assert [name for name in names if find_spec(f"{node.module}.{name}") is None] == []


@pytest.mark.parametrize("text", blocks("console", "sh", "bash"))
def test_a_command_is_there_with_its_options(text: str) -> None:
    for words in commands(text):
        match words:
            case ["lgov", *rest]:
                check_command(cli, rest)
            case ["python", "-m", module, *_]:
                assert find_spec(module) is not None, module
            case ["make", target, *_]:
                assert target in TARGETS | {".venv-vllm/.installed"}
            case ["pip", "install", *what]:
                extras = re.findall(r"^lgov\[(.*)\]$", "\n".join(what), re.M)
                assert {one for extra in extras for one in extra.split(",")} <= {*EXTRAS}


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, as words, without what is set before them."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            words = shlex.split(part, comments=True) if "->" not in part else []
            yield [word for at, word in enumerate(words) if at or not re.match(r"[A-Z_]+=", word)]


def check_command(command: click.Command, words: list[str]) -> None:
    """Follows subcommands and parses the options of the last, without looking at what they name."""
    while isinstance(command, click.Group):
        assert words[0] in command.commands, words
        command, words = command.load(words[0]), words[1:]  # type: ignore[attr-defined]
    context = click.Context(command)
    context.allow_interspersed_args = command.allow_interspersed_args
    command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_yaml_file_loads_as_what_it_is(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(text)
    document, _ = read_yaml(text, "file.yaml")
    if any("use" in rule for rule in document.get("rules", ())):
        done = CliRunner().invoke(cli, ["policy", "check", str(tmp_path / "file.yaml")])
        assert done.exit_code == 0, done.output
    elif document.keys() & {"model", "training", "runtime", "verl", "prompt"}:
        page = page_text(f"{ROOT}/docs/how-to/algorithms.md#Your own algorithm")
        (tmp_path / "my_algo.py").write_text(BLOCK.search(page)[3])  # type: ignore[index]
        load_train_settings(tmp_path / "file.yaml")


@pytest.mark.parametrize("text", blocks("json", "jsonl", "toml"))
def test_data_can_be_parsed(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        for line in text.splitlines() if text.count("\n{") else [text]:
            json.loads(line)


#: Programs that no other test runs: the page, the place of the block among its Python blocks.
RUN = {
    "README.md": (0,),
    "docs/how-to/audit.md": (0,),
    "docs/how-to/confinement.md": (0,),
    "docs/how-to/tracing.md": (1, 2),
    "docs/reference/policies.md": (0,),
}


@pytest.mark.parametrize(("page", "place"), [(page, place) for page, places in RUN.items() for place in places])
def test_a_program_runs(page: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("version: 1\nrules: [{name: a, use: allow}]\n")
    programs = [text for _, language, text in BLOCK.findall((ROOT / page).read_text()) if language == "python"]
    names: dict[str, Any] = {}
    if page == "README.md":
        names |= {"create_agent": lambda *given, middleware: middleware, "model": None, "tools": []}
    if "audit.key" in programs[place]:
        make_key(Path("audit.key"))
    if "sandbox" in programs[place] and why_not() is not None:
        pytest.skip("no box here")
    exec(compile(programs[place].replace("/mnt/elsewhere", str(tmp_path)), page, "exec"), names)
    if page == "docs/how-to/confinement.md":
        assert (names["done"].exit_code, names["done"].result.strip()) == (0, "42")
    if page == "docs/reference/policies.md":
        judged = names["lgov_policies"]()["office_hours"](opens=0, closes=24).judge(Action(Point.PRE_TOOL_CALL, "x"))
        assert judged.effect is Effect.ALLOW


def test_a_page_with_programs_is_named_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    pages = {str(path.relative_to(ROOT)) for path in PAGES if "```python" in path.read_text()}
    #: Parts of programs that other tests run whole: the test of each.
    elsewhere = {
        "docs/how-to/scale.md": "tests/pair/test_skill_document.py",
        "docs/how-to/training.md": "tests/pair/test_skill_document.py",
    }
    assert [page for page in pages if page not in tests and not (ROOT / elsewhere.get(page, "-")).exists()] == []
