"""The closing report of ``lgov run``: what was governed, what was not, and calls near a known gap."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core.errors import counted
from lgov_core.policies.confinement import in_box
from lgov_core.process.governed import Blocked
from lgov_core.process.requests import request_lines

if TYPE_CHECKING:
    from lgov_core.types import Adapter

_WORDS = {
    "agent_startup": ("start",),
    "input": ("input",),
    "pre_model_call": ("model call",),
    "post_model_call": ("reply", "replies"),
    "pre_tool_call": ("tool call",),
    "post_tool_call": ("tool result",),
    "output": ("answer",),
    "agent_shutdown": ("end",),
}
_EFFECTS = {
    "deny": "denied",
    "escalate": "not approved yet",
    "would-deny": "would have been denied",
    "would-escalate": "would have needed approval",
}
#: Actions of lgov's own: the beginning and the end of a rollout.
_OURSELVES = ("", "lgov")
#: More of the same gap are counted, not listed.
MAX_PLACES = 5
MAX_BLOCKED = 10
#: Characters of a reason; it may hold what a model wrote.
MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class NearGap:
    """A line of the program that may go around an adapter: a known gap of ``framework``."""

    file: str
    line: int
    call: str
    framework: str
    gap: str
    why: str


@dataclass(slots=True)
class ClosingReport:
    """How a governed run went. ``judged`` counts by framework, point and effect; it holds the children's too.

    ``shadow``: a policy was in shadow mode; without it ``would_deny`` of the ``allowed`` decisions would have blocked.
    ``blocked`` names what was blocked, or would have been.

    ``runs_code`` are the programs that a policy lets run the folder's code. ``uncovered`` says for each instrumented
    framework at which points it cannot block. ``children`` counts started programs by name, ``governed_children`` those
    that were under policy, also if another child started them, of which ``running_children`` have not ended, which in a
    box (``boxed``) end with it;
    ``ungoverned_children`` are the Python programs that were not, ``other_children`` those that are not Python, both by name;
    ``children_refused``: the status is not 0 for the ungoverned ones.
    ``record_lost``: the status is not 0, since the record is gone or was changed, or its last entries are not signed.
    ``store`` is the trace store as it may be printed, or None, and ``rollout_id`` the rollout that the run is there, in which
    there were so many ``conversations``.
    ``unevaluated`` counts by host the requests to model servers that no rule saw; with ``unevaluated_refused`` they were
    not sent. ``left_out`` counts the calls by what the endpoint did not offer its model.
    """

    frameworks: list[str]
    judged: dict[str, dict[str, dict[str, int]]]
    allowed: int
    denied: int
    shadow: bool
    would_deny: int
    uncovered: dict[str, list[str]]
    near_gaps: list[NearGap]
    children: dict[str, int]
    governed_children: int
    running_children: int
    ungoverned_children: dict[str, int]
    other_children: dict[str, int]
    children_refused: bool
    failures: dict[str, int]
    audit: str
    record_lost: bool
    rollout_id: str
    conversations: int = 0
    store: str | None = None
    runs_code: list[str] = field(default_factory=list[str])
    blocked: list[Blocked] = field(default_factory=list[Blocked])
    unevaluated: dict[str, int] = field(default_factory=dict[str, int])
    unevaluated_refused: bool = False
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    boxed: bool = field(default_factory=in_box)
    problems: list[str] = field(default_factory=list[str])

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report in words, a line each."""
        # What children judged counts too, also of a framework that only they have loaded.
        frameworks = list(dict.fromkeys([*self.frameworks, *(name for name in self.judged if name not in _OURSELVES)]))
        lines = [
            f"governed: {', '.join(frameworks) or 'none'}; decisions: {self.allowed} allowed, {self.denied} denied"
        ]
        if self.shadow or self.would_deny:
            lines[0] += f"; shadow mode: {self.would_deny or 'none'} of the allowed would have been denied"
        if not frameworks and not any(kind.point == "agent_startup" for kind in self.blocked):
            lines.append("the program imported no framework that lgov governs: no tool call of it was evaluated")
        # A framework below others (the openai client, say) has no decisions where those judge.
        for framework in [name for name in frameworks if name in self.judged] or frameworks:
            points = self.judged.get(framework, {})
            counts = [
                counted(sum(points[point].values()), *words) for point, words in _WORDS.items() if point in points
            ]
            lines.append(f"{framework}: evaluated {', '.join(counts) or 'nothing'}")
        for framework, points in self.uncovered.items():
            lines.append(f"{framework}: cannot block at {', '.join(points)}")
        lines += blocked_lines(self.blocked, self.audit)
        lines += request_lines(self.unevaluated, refused=self.unevaluated_refused)
        lines += [
            f"not offered to the model in {counted(count, 'call')}: {what}" for what, count in self.left_out.items()
        ]
        if self.conversations > 1:
            lines.append(
                f"{self.conversations} conversations shared one rollout: what is counted per rollout counts them together,"
                " per: conversation each alone"
            )
        lines += [f"{counted(count, 'failure')} in {what}" for what, count in sorted(self.failures.items())]
        lines += [
            f"near a known gap: {Path(near.file).name}:{near.line} calls {near.call}(): {near.framework}: {near.why}"
            for near in self.near_gaps[:MAX_PLACES]
        ]
        if len(self.near_gaps) > MAX_PLACES:
            lines.append(f"near a known gap: {len(self.near_gaps) - MAX_PLACES} further places")
        if self.runs_code:
            lines.append(f"runs the folder's code, as the policy permits: {', '.join(self.runs_code)}")
        lines += self._child_lines()
        lines += self.problems
        lost = ", which does not hold what was decided, or cannot prove it; status 78 for that" * self.record_lost
        lines.append(f"audit record: {self.audit}{lost}")
        if self.store is not None:
            lines.append(f"trace store: {self.store}, rollout {self.rollout_id}")
        return lines

    def _child_lines(self) -> list[str]:
        lines: list[str] = []
        if self.governed_children:
            until = "until the box ends" if self.boxed else "from now on in the record only"
            running = f"; {self.running_children} still running, {until}" * bool(self.running_children)
            lines.append(f"{_started(self.governed_children)} governed{running}")
        if self.ungoverned_children:
            lines.append(
                f"{_started(sum(self.ungoverned_children.values()))} not governed ({_names(self.ungoverned_children)})"
            )
        if self.other_children:
            what = counted(sum(self.other_children.values()), "other program")
            lines.append(f"{what} without a policy: {_names(self.other_children)}")
        if self.children_refused:
            lines.append("status 78 for that: start them with this environment, or give --children best-effort")
        return lines


def blocked_lines(blocked: Sequence[Blocked], audit: str) -> list[str]:
    """A line for each kind of blocked action, and how to answer what waits for approval. ``audit`` is the whole record."""
    lines: list[str] = []
    for kind in blocked[:MAX_BLOCKED]:
        times = f" {kind.count} times" if kind.count > 1 else ""
        where = "" if kind.point == "pre_tool_call" else f" at {kind.point}"
        reason = ("the last: " if kind.varies else "") + kind.reason[:MAX_REASON]
        line = f"{_EFFECTS[kind.effect]}{times}: {kind.name}{where}, by {kind.policy}/{kind.rule}: {reason}"
        line = "".join(char if char.isprintable() else "?" for char in line)
        lines.append(f"{line} ({kind.decision_id})" if kind.decision_id else line)
        if kind.effect == "escalate":
            lines.append(f"  to answer: {kind.approval or 'give the rule a store: a file in which a person answers'}")
    if len(blocked) > MAX_BLOCKED:
        more = len(blocked) - MAX_BLOCKED
        lines.append(f"{more} further kinds were blocked: lgov audit show {audit} --denied")
    return lines


def _names(started: Mapping[str, int]) -> str:
    return f"it started {', '.join(name for name, _ in Counter(started).most_common(MAX_PLACES))}"


def _started(count: int) -> str:
    what = "Python process{} that the program started {}"
    return counted(count, what.format("", "was"), what.format("es", "were"))


def cannot_block(adapter: Adapter) -> list[str]:
    """The points of actions at which ``adapter`` cannot block."""
    from lgov_core.types import Point

    judged = [point for point in Point if point not in (Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN)]
    return [point.value for point in judged if not (surface := adapter.surface.get(point)) or not surface.block]


def near_gaps(folder: Path, adapters: Iterable[Adapter], main: Path | None = None) -> list[NearGap]:
    """The lines of the program's own modules that call what a known gap of an instrumented framework is reached by.

    Read from the source of ``main`` and of the modules that are loaded from ``folder``: what is called there by name. It
    is a hint and no proof in either direction.
    """
    gaps = {name: (adapter.name, gap) for adapter in adapters for gap in adapter.gaps for name in gap.calls}
    near: list[NearGap] = []
    if not gaps:
        return near
    for path in sorted(_own_files(folder, main)):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (call := _called(node)) in gaps:
                framework, gap = gaps[call]
                near.append(NearGap(str(path), node.lineno, call, framework, gap.name, gap.why))
    return sorted(near, key=lambda near_gap: (near_gap.file, near_gap.line))


def _own_files(folder: Path, main: Path | None) -> set[Path]:
    root = folder.resolve()
    files: set[Path] = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py"):
            continue
        path = Path(name).resolve()
        if path.is_relative_to(root) and "site-packages" not in path.parts and not path.is_relative_to(_OURS):
            files.add(path)
    if main is None and sys.argv and sys.argv[0].endswith(".py"):
        main = Path(sys.argv[0]).resolve()
    return files | ({main} if main is not None and main.is_file() else set())


_OURS = Path(__file__).parent


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
