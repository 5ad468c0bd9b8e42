"""The report for an auditor as HTML: on a screen, a telephone and paper every value can be read, with what it stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, make_key
from tests.commands.cli_runner import lgov
from tests.web.browser import NARROW, WIDE

#: The width of A4 in CSS pixels, without margins of 12 mm.
PAPER: Final = {"width": 703, "height": 1000}
#: The cells with a value, each with its label, its text and its place.
CELLS: Final = """() => [...document.querySelectorAll('td')].filter(cell => cell.textContent).map(cell => {
    const label = getComputedStyle(cell, '::before').content, box = cell.getBoundingClientRect()
    const names = getComputedStyle(cell.closest('table').querySelector('tr')).display
    const texts = document.createRange()
    texts.selectNodeContents(cell)
    return [label.includes(cell.dataset.name) || names !== 'none', cell.scrollWidth <= cell.clientWidth + 1, box.width > 0,
            Math.min(box.left, ...[...texts.getClientRects()].map(each => each.left)),
            Math.max(box.right, ...[...texts.getClientRects()].map(each => each.right))]
})"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report with long values of all kinds, none of which can be broken at a space."""
    monkeypatch.chdir(tmp_path)
    long = "x" * 300
    request = Action(Point.PRE_TOOL_CALL, "refund", agent="clerk" * 9, rollout_id="r" * 60, arguments={"order": long})
    denied = Decision(Effect.DENY, "p" * 60, "no-refund" * 6, f"it is {long}", policy_digest="d" * 64)
    shadowed = Decision(Effect.ALLOW, "p", "shadow", "", parts=(denied.changed(shadowed=True),), shadowed=True)
    approved = Decision(Effect.ALLOW, "p" * 60, "approved", "Ada (key 1f) approved it (request apr_1)")
    with AuditLog("audit.db", signer=make_key(Path("audit.key"))) as log:
        log.begin_policy("d" * 64, f"/etc/{'policies/' * 20}policy.yaml", "enforce")
        for decision in (denied, shadowed, approved):
            log.commit(request, decision)
        log.append("ungoverned", {"programs": {f"{long}.py": 2}}, arguments=None, content={})
    done = lgov("export", "audit.db", "--format", "report", "--to", "report.html")
    assert done.exit_code == 0, done.output
    return tmp_path / "report.html"


@pytest.mark.parametrize(
    ("viewport", "media"), [(WIDE, "screen"), (NARROW, "screen"), (PAPER, "print")], ids=["wide", "narrow", "paper"]
)
def test_nothing_is_cut_and_every_value_has_its_name(
    new_page: Callable[..., Any], report: Path, viewport: dict[str, int], media: str
) -> None:
    page = new_page(viewport=viewport)
    page.emulate_media(media=media)
    page.goto(report.as_uri())
    cells = page.evaluate(CELLS)
    assert len(cells) > 80
    assert all(is_named and fits and is_seen for is_named, fits, is_seen, _, _ in cells)
    width = page.evaluate("document.documentElement.clientWidth")
    assert min(left for *_, left, _ in cells) >= 0
    assert max(right for *_, right in cells) <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
