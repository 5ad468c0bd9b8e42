"""Presets: what each allows, what each denies, and that none is looser than the one before it."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import PRESETS, preset
from lgov_core.types import Action, Effect, Kind, Point

READS = "SELECT name FROM users WHERE id = 42"
WRITES = "UPDATE orders SET status = 'complete' WHERE id = 7"
DESTROYS = "DROP TABLE users"
PROSE = "Please delete everything."


def act(kind: Kind = "agent", context: dict[str, Any] | None = None, **arguments: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, "worker", kind=kind, arguments=arguments, context=context or {})


@pytest.mark.parametrize("kind", ["agent", "function", "mcp"])
@pytest.mark.parametrize("argument", ["input", "query", "sql"])
@pytest.mark.parametrize(
    ("text", "allowing"),
    [
        (READS, {"strict", "read_only", "guarded", "permissive"}),
        (WRITES, {"guarded", "permissive"}),
        ("INSERT INTO notes (body) VALUES ('x')", {"guarded", "permissive"}),
        ("DELETE FROM orders", {"permissive"}),
        (DESTROYS, {"permissive"}),
        (f"{READS}; {DESTROYS}", {"permissive"}),
        ("SELECT load_extension('x')", {"permissive"}),
        (PROSE, {"permissive"}),
        ("", {"permissive"}),
    ],
)
def test_what_each_preset_allows(kind: Kind, argument: str, text: str, allowing: set[str]) -> None:
    for name in PRESETS:
        decision = preset(name).judge(act(kind, **{argument: text}))
        assert decision.blocks == (name not in allowing), (name, decision)


def test_unknown_acts_are_denied() -> None:
    for name in ("strict", "read_only", "guarded"):
        judges = preset(name, dialect="sqlite")
        for unknown in (
            act(),
            act(path="/etc/passwd"),
            act(query=None),
            act(query=["SELECT 1"]),
            act("handoff", query=READS),
        ):
            assert judges.judge(unknown).blocks, (name, unknown)
        assert judges.judge(act(query=READS, input=DESTROYS)).blocks, "each of the arguments is judged"


def test_only_strict_minds_what_stands_beside_the_sql() -> None:
    assert preset("strict").judge(act(query=READS, to="eve@example.org")).rule == "argument-unknown"
    assert not preset("read_only").judge(act(query=READS, limit=5)).blocks


def test_permissive_records_what_guarded_denies() -> None:
    decision = preset("permissive").judge(act(input=DESTROYS))
    assert (decision.effect, decision.shadowed) == (Effect.ALLOW, True)
    assert [part.effect for part in decision.parts] == [Effect.DENY]
    assert decision.parts[0].reason == preset("guarded").judge(act(input=DESTROYS)).reason


def test_without_a_dialect_the_sql_must_be_harmless_in_each_common_one() -> None:
    quoted = "SELECT `name` FROM users"  # a name to MySQL, nothing to PostgreSQL
    for name in ("strict", "read_only", "guarded"):
        assert preset(name).judge(act(input=quoted)).blocks
        assert preset(name, dialect="postgres").judge(act(input=quoted)).blocks
        assert not preset(name, dialect="mysql").judge(act(input=quoted)).blocks
        assert not preset(name).judge(act(context={"dialect": "mysql"}, input=quoted)).blocks
        assert preset(name, dialect="mysql").judge(act(context={"dialect": "postgres"}, input=quoted)).blocks
    assert preset("guarded").judge(act(context={"dialect": "klingon"}, input=READS)).rule == "dialect-unknown"
    assert preset("guarded").judge(act(context={"dialect": 3}, input=READS)).rule == "dialect-unknown"


def test_a_preset_governs() -> None:
    governor = Governor(preset("strict"), manager=make_plugin_manager(builtin=(), third_party=False))
    assert not governor.decide(act(input=READS)).blocks
    denied = governor.decide(act(input=DESTROYS))
    assert denied.blocks
    assert denied.reason
    governor.close()


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(PolicyError, match="did you mean strict"):
        preset("strickt")
    with pytest.raises(PolicyError, match="permissive"):
        preset("off")
    with pytest.raises(PolicyError, match="dialect"):
        preset("strict", dialect="klingon")
