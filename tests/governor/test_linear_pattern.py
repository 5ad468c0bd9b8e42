"""Patterns of schemas and conditions: no text of any length takes them more than about 50 ms, and what is too long is denied.

The tests allow twice that: other work on the machine costs processor time too.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import MAX_STEPS, MIN_BYTES, LinearPattern, PatternLimit, pattern_steps
from lgov_core.policies import ConstantPolicy, PolicySet, Rule
from lgov_core.policies.tools import ToolPolicy
from lgov_core.types import Action, Effect, Point

#: Those on which RE2 takes longest for their size: its states are too many to be kept, and it goes through all of them.
SLOW = [
    *(f"(a|b)*a(a|b){{{count}}}c" for count in (20, 30, 50, 100, 200, 900)),
    "((a?b?){0,20}){0,20}c",
    "(a)?(b)?" * 40 + "(a|b)*a(a|b){60}c",
    "[^c]*a[^c]{300}c",
    r"(?:[a-q][^u-z]{13}x)",
    r"(\w+\.)*\w+x$",
    "(x+x+)+y",
]  # fmt: skip


def text_of(letters: str, length: int) -> str:
    choose = random.Random(1).choice
    return "".join(choose(letters) for _ in range(length))


def cpu_time(act: Any) -> float:
    """Seconds; the shortest of three runs, because this measures the work and not the machine."""
    times: list[float] = []
    for _ in range(3):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("pattern", SLOW, ids=lambda pattern: pattern[:30])
@pytest.mark.parametrize("letters", ["ab", "a", "ab😀é"])
def test_the_longest_text_of_a_pattern_takes_no_100_ms(pattern: str, letters: str) -> None:
    made = LinearPattern("a rule", pattern)
    length = min(200_000, MAX_STEPS // made.steps - 1)
    text = text_of(letters, length).encode()[:length].decode(errors="ignore")

    def search() -> None:
        with pattern_steps():
            made.search(text)

    assert cpu_time(search) < 0.1


def test_many_texts_of_a_call_are_bounded_together() -> None:
    schema = {"type": "object", "additionalProperties": {"pattern": "(a|b)*a(a|b){900}c|[ab]"}}
    policy = ToolPolicy(allow=["t"], schemas={"t": schema})

    text = text_of("ab", 400)

    def judged(count: int) -> Any:
        texts = dict.fromkeys(map(str, range(count)), text)
        return policy.judge(Action(Point.PRE_TOOL_CALL, "t", arguments=texts))

    assert not judged(5).blocks
    assert judged(2000).rule == "tool-arguments"
    assert "all that its pattern may be run on" in judged(2000).reason
    assert cpu_time(lambda: judged(2000)) < 0.1  # with what it takes to copy the arguments


def test_a_pattern_that_leaves_no_length_is_an_error_when_it_is_made() -> None:
    for pattern in ("^.{1,900}$", r"(?:\pL?){300}"):
        with pytest.raises(PolicyError, match="instructions take too long"):
            LinearPattern("a rule", pattern)


def test_a_condition_whose_text_is_too_long_denies() -> None:
    allow = ConstantPolicy(Effect.ALLOW)
    for comparison in ({"matches": "(a|b)*a(a|b){900}c|^a"}, {"glob": "a" + "?" * 900 + "*"}):
        for when in ({"field": "arguments.x", **comparison}, {"not": {"field": "arguments.x", **comparison}}):
            policies = PolicySet([Rule(allow, when=when), Rule(allow)])
            decision = policies.judge(Action(Point.PRE_TOOL_CALL, "t", arguments={"x": "a" * 100_000}))
            assert (decision.blocks, decision.rule) == (True, "condition-error")
            assert "may be run on" in decision.reason


@pytest.mark.parametrize(
    "glob", ["*a" + "?" * 60 + "b", "*" + "[a-z]" * 30 + "!", "*a*a*a*a*a*b", "*" + "a" * 200 + "b"]
)
def test_the_longest_text_of_a_glob_takes_no_100_ms(glob: str) -> None:
    rule = Rule(ConstantPolicy(Effect.ALLOW), when={"field": "arguments.x", "glob": glob})
    action = Action(Point.PRE_TOOL_CALL, "t", arguments={"x": "a" * (MAX_STEPS // len(glob))})
    assert rule.condition is not None
    assert cpu_time(lambda: rule.condition and rule.condition.holds(action)) < 0.1


# ---------------------------------------------------------------------- the exact limits


def of_size(steps: int) -> LinearPattern:
    """A pattern of so many instructions."""
    return LinearPattern("p", "a" * (steps - LinearPattern("p", "a").steps + 1))


def test_a_pattern_may_have_as_many_instructions_as_leave_room_for_a_short_text() -> None:
    most = MAX_STEPS // MIN_BYTES
    assert of_size(most).steps == most
    with pytest.raises(PolicyError, match="whose 6001 instructions take too long"):
        of_size(most + 1)


def test_a_text_may_be_as_long_as_all_steps_allow_and_then_nothing_is_left() -> None:
    pattern = of_size(MAX_STEPS // MIN_BYTES)
    for text in ("b" * 499, "é" * 249 + "b"):
        with pattern_steps():
            assert not pattern.search(text)
            with pytest.raises(PatternLimit, match="text longer than 500 bytes"):
                pattern.search("")
    for text in ("b" * 500, "é" * 250):
        with pattern_steps(), pytest.raises(PatternLimit):
            pattern.search(text)


def test_outside_of_a_judgement_nothing_is_searched() -> None:
    pattern = LinearPattern("p", "a")
    with pattern_steps():
        assert pattern.search("a")
    with pytest.raises(PatternLimit):
        pattern.search("a")


def test_groups_take_no_time_and_errors_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert LinearPattern("p", "(a)(b)").steps == LinearPattern("p", "ab").steps
    with pytest.raises(PolicyError):
        LinearPattern("p", "(")
    assert capfd.readouterr() == ("", "")
