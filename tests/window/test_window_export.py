"""The exported file: one page with everything inside, and the answers that it was given."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lgov_core.store import RolloutQueue
from lgov_core.views.web.export import one_page, write_report
from lgov_core.views.web.protocol import WindowError
from lgov_core.views.web.window import Window
from tests.window.recorded_rollouts import record, record_rollout

PAGE = """<!doctype html>
<html><head>
<title>x</title>
<link rel="icon" href="static/icon.svg">
<link rel="stylesheet" href="static/a.css">
<script type="module" src="static/app.js"></script>
</head><body><div id="app"></div></body></html>
"""
MODULES = {
    "app.js": 'import { twice as two } from "./lib/math.js";\nimport * as all from "./lib/math.js";\n'
    'import one, { half } from "./vendor/small.js";\nimport "./lib/effect.js";\nlog(two(4), all.LIMIT, one(), half);\n'
    'log("</script><!--");\n',
    "lib/math.js": 'import { half } from "../vendor/small.js";\nexport const LIMIT = 9;\n'
    "export function twice(n) {\n  return (2 * n * half) / half;\n}\n/* not code:\nexport const x = 1;\n*/\n",
    "lib/effect.js": 'log("effect");\n',
    "vendor/small.js": "var a=.5,b=1;export{a as half,b as other};export default function(){return b}",
}


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A page of four modules."""
    folder = tmp_path / "static"
    for name, text in {**MODULES, "index.html": PAGE, "a.css": "body { color: red }", "icon.svg": "<svg/>"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def parts(page: str) -> dict[str, str]:
    """The script, the styles and the data of a page."""
    patterns = {
        "script": r'<script type="module">(.*?)</script>',
        "style": r"<style>(.*?)</style>",
        "data": r'<script type="application/json" id="lgov-data">(.*?)</script>',
    }
    return {name: re.findall(pattern, page, re.S)[0] for name, pattern in patterns.items()}


def test_the_page_allows_its_own_script_and_styles_only(static: Path) -> None:
    page = one_page(static, "{}")
    found = parts(page)
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)[0]
    hashes = {name: base64.b64encode(hashlib.sha256(found[name].encode()).digest()).decode() for name in found}
    assert f"script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "static/" not in page
    assert page.count("<script") == page.count("</script>") == 2


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_joined_modules_do_what_they_did_apart(static: Path) -> None:
    script = "const said = []; const log = (...all) => said.push(...all);\n" + parts(one_page(static, "{}"))["script"]
    result = subprocess.run(
        ["node", "-e", script + "\nconsole.log(JSON.stringify(said));"], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout) == ["effect", 8, 9, 1, 0.5, "</script><!--"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("app.js", 'const x = 1;\nimport { y } from "elsewhere";\n'),
        ("lib/math.js", 'import "../app.js";\n'),
        ("app.js", 'export * from "./lib/math.js";\n'),
        ("app.js", 'import { y } from "./missing.js";\n'),
    ],
)
def test_what_cannot_be_joined_is_refused(static: Path, name: str, code: str) -> None:
    (static / name).write_text(code + MODULES[name])
    with pytest.raises(WindowError, match="not installed whole"):
        one_page(static, "{}")


def test_no_recorded_text_ends_the_data(static: Path, store: RolloutQueue, tmp_path: Path, monkeypatch: Any) -> None:
    said = "</script><script>alert(1)</script><!--"
    record_rollout(store, "ro", "task", None, 0.0, said=said)
    page = exported(static, tmp_path, monkeypatch)
    assert page.count("<script") == page.count("</script>") == 2
    data = json.loads(parts(page)["data"])
    shown = data["responses"][f"rollouts/ro?attempt=1&source={tmp_path.name}"]
    assert shown["steps"][0]["messages"][1]["text"]["text"] == said


def test_the_answers_are_there_by_their_paths(
    static: Path, store: RolloutQueue, tmp_path: Path, monkeypatch: Any
) -> None:
    record(store)
    data = json.loads(parts(exported(static, tmp_path, monkeypatch))["data"])
    answers, source = data["responses"], tmp_path.name
    assert {"sources", "runs", f"runs/{source}", "compare/sides", f"tasks?source={source}"} <= answers.keys()
    assert {f"governance?by={by}&source={source}" for by in ("policy", "rule", "tool", "agent")} <= answers.keys()
    assert len(answers[f"rollouts?source={source}"]["items"]) == 7
    one = f"rollouts/before-0-0?attempt=1&source={source}"
    assert answers[f"rollouts/before-0-0?source={source}"] == one
    call = answers[one]["steps"][0]["call"].replace(":", "%3A")
    assert answers[f"rollouts/before-0-0/calls/{call}/tokens?attempt=1&source={source}"]["ids"] == [1, 2, 3, 4, 5]
    (pair,) = answers["compare/sides"]["pairs"]
    compared = answers[f"compare?a={pair['a']}&b={pair['b']}&channel=task"]
    assert compared["counts"]["fixed"] == 1
    assert (data["format"], data["content"], data["chosen"]) == (1, True, "7 rollouts, 84 tokens")


def test_without_content_nothing_that_was_written_is_inside(
    static: Path, store: RolloutQueue, tmp_path: Path, monkeypatch: Any
) -> None:
    record_rollout(store, "ro", "task", None, 0.0, said="a secret")
    page = exported(static, tmp_path, monkeypatch, content=False)
    assert [word for word in ("a secret", "Done.", "staff", "DENIED", "Not this table.") if word in page] == []
    data = json.loads(parts(page)["data"])
    shown = data["responses"][f"rollouts/ro?attempt=1&source={tmp_path.name}"]
    assert shown["steps"][0]["tools"][0]["decisions"][0]["rule"] == "no-drop"
    (tokens,) = [one for path, one in data["responses"].items() if path.startswith("rollouts/ro/calls/c1")]
    assert (tokens["ids"], tokens["texts"], tokens["mask"]) == (None, None, [0, 0, 0, 1, 1])


def exported(static: Path, folder: Path, monkeypatch: Any, *, content: bool = True) -> str:
    """The file that is exported of the run in ``folder``."""
    monkeypatch.setattr("lgov_core.views.web.export.STATIC", static)
    window = Window(str(folder))
    path = folder / "report.html"
    try:
        written = write_report(window, path, content=content)
    finally:
        window.close()
    assert written["bytes"] == path.stat().st_size
    return path.read_text()
