"""Spans joined with captured calls; tries of tokens; the ladder of batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lgov_core.store.sqlite import SQLiteStore
from lgov_core.transitions import (
    DataFinding,
    Records,
    Selection,
    Transition,
    assign_credit,
    build_transitions,
    make_chains,
    make_transitions,
)
from lgov_core.transitions.tokens import make_tree
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout, Span
from tests.transitions.assembled import assemble

ROLLOUT = Rollout("r", "t", "run", {}, 0.0)
ATTEMPT = Attempt("r", 1, 0.0, 9.0, Outcome.SUCCEEDED)


def captured(name: str, at: float, prompt: tuple[int, ...], reply: tuple[int, ...], **more: Any) -> CapturedCall:
    given: dict[str, Any] = {"rollout_id": "r", "attempt": 1, "logprobs": (-0.5,) * len(reply), **more}
    return CapturedCall(
        response_id=name, model="m", request={}, response={}, prompt_ids=prompt, response_ids=reply, finish_reason="stop",
        weights_version=0, temperature=1.0, top_p=1.0, started_at=at, ended_at=at + 1, **given,
    )  # fmt: skip


def span(span_id: str, operation: str, under: str | None, **more: Any) -> Span:
    return Span(operation, span_id, 0.0, 1.0, {"gen_ai.operation.name": operation, **more}, "r", 1, under)


CALLS = [captured("c1", 1, (1,), (2,)), captured("c2", 2, (5,), (6,)), captured("c3", 3, (1, 2, 3), (4,))]
SPANS = [
    span("w", "invoke_agent", None, **{"gen_ai.agent.name": "write"}),
    span("rw", "invoke_agent", "w", **{"gen_ai.agent.name": "rewrite"}),
    span("s1", "chat", "w", **{"gen_ai.response.id": "c1"}),
    span("s2", "chat", "rw", **{"gen_ai.response.id": "c2"}),
    span("s3", "chat", "w", **{"gen_ai.response.id": "c3"}),
]
FINAL = Reward(1.0, "task", "r", 1)


def test_adapter_spans_give_captured_calls_their_agents() -> None:
    data = assemble([ROLLOUT], [ATTEMPT], CALLS, [FINAL], SPANS, Selection(agents=("write",)))
    assert [(one.response_id, one.agent, one.rewards) for one in data.transitions] == [
        ("c1", "write", {}),
        ("c3", "write", {"task": 1.0}),
    ]
    assert data.diagnostics == ()


def test_the_endpoints_tokens_count_and_a_claim_of_others_is_a_finding() -> None:
    claim = span("x", "chat", "w", **{
        "gen_ai.response.id": "c1", "lgov.prompt_token_ids": [7], "lgov.response_token_ids": [8],
    })  # fmt: skip
    data = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL], [SPANS[0], claim])
    assert [(one.prompt_ids, one.response_ids) for one in data.transitions] == [((1,), (2,))]
    assert data.counts() == {DataFinding.CLAIM_DIFFERS: 1}


def test_a_span_with_tokens_stands_in_for_a_call_that_was_not_captured() -> None:
    claim = span("x", "chat", "w", **{
        "gen_ai.response.id": "c9", "lgov.prompt_token_ids": [7], "lgov.response_token_ids": [8],
        "lgov.response_logprobs": [-0.25],
    })  # fmt: skip
    data = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL], [SPANS[0], claim])
    assert {one.response_id: one.response_ids for one in data.transitions} == {"c1": (2,), "c9": (8,)}


def test_spans_that_contradict_each_other_about_a_call_say_the_same_in_any_order() -> None:
    told = [
        Span("chat", f"s{number}", 0.0, 1.0, {
            "gen_ai.operation.name": "chat", "gen_ai.response.id": "c1", "lgov.tool_call_ids": [f"k{number}"],
            "gen_ai.agent.name": f"agent{number}",
        }, "r", number, None)
        for number in (1, 2)
    ]  # fmt: skip
    datas = [assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL], spans) for spans in (told, told[::-1])]
    assert datas[0] == datas[1]
    assert datas[0].transitions[0].agent == "agent1"


@pytest.mark.parametrize("attempt", [1, None])
def test_a_call_that_an_agent_made_up_beside_its_recorded_ones_is_left_out_and_gets_no_reward(
    attempt: int | None,
) -> None:
    forged = replace(
        span("x", "chat", None, **{
            "gen_ai.response.id": "c9", "lgov.prompt_token_ids": [7], "lgov.response_token_ids": [8],
            "lgov.response_logprobs": [-0.25],
        }), claimed=True, started_at=8.0, attempt=attempt,
    )  # fmt: skip
    data = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL], [SPANS[0], forged])
    assert [(one.response_id, one.rewards) for one in data.transitions] == [("c1", {"task": 1.0})]
    assert data.counts() == {DataFinding.CLAIM_NOT_CAPTURED: 1}
    # Where the endpoint recorded nothing, spans from outside are all there is.
    assert [one.response_id for one in assemble([ROLLOUT], [ATTEMPT], [], [FINAL], [forged]).transitions] == ["c9"]


def test_the_record_says_how_the_attempt_ended_and_not_a_span() -> None:
    root = span("w", "invoke_agent", None, **{"lgov.outcome": "infrastructure", "lgov.task_id": "other"})
    data = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL], [root])
    assert [(one.outcome, one.task_id) for one in data.transitions] == [(Outcome.SUCCEEDED, "t")]


def test_a_rollout_that_only_captured_calls_name_ends_with_its_final_reward() -> None:
    again = captured("c4", 5, (1,), (2,), attempt=2)
    for final in (Reward(1.0, "task", "r", 2), Reward(1.0, "task", "r")):
        data = assemble([], [], [again, *CALLS], [final])
        assert [(one.attempt, one.task_id, one.outcome, one.rewards) for one in data.transitions] == [
            (2, "r", None, {"task": 1.0})
        ]
        assert data.counts() == {DataFinding.NO_OUTCOME: 1, DataFinding.NO_TASK_ID: 1, DataFinding.OPEN_ATTEMPT: 1}
    data = assemble([], [], CALLS, [replace(FINAL, response_id="c1"), Reward(1.0, "task", "other")])
    assert data.transitions == ()
    assert data.counts()[DataFinding.OPEN_ATTEMPT] == 1
    assert [one.detail for one in data.diagnostics if one.finding is DataFinding.UNKNOWN_REWARD_TARGET] == [
        "it names rollout other, which is not on record"
    ]


def test_what_names_no_attempt_is_of_the_last_one_that_captured_calls_name() -> None:
    outcome = Span("lgov.rollout", "x", 0.0, 9.0, {"lgov.outcome": "failed", "lgov.task_id": "t"}, "r")
    again = captured("c4", 5, (1,), (2,), attempt=2)
    data = assemble([], [], [*CALLS, again], [Reward(1.0, "task", "r")], [outcome])
    assert [(one.response_id, one.task_id, one.outcome, one.rewards) for one in data.transitions] == [
        ("c4", "t", Outcome.FAILED, {"task": 1.0})
    ]
    data = assemble([], [], [*CALLS, again], [FINAL], [replace(outcome, attempt=1)])
    assert [(one.attempt, one.outcome) for one in data.transitions] == [(1, Outcome.FAILED)] * 3
    assert data.counts() == {DataFinding.OPEN_ATTEMPT: 1}


def test_what_is_written_while_a_store_is_read_does_no_harm() -> None:
    class Written(SQLiteStore):
        """Gets another rollout, from its beginning to its end, as soon as its attempts were read."""

        def attempts(self, rollout_ids: Sequence[str] | None = None) -> list[Attempt]:
            read = super().attempts(rollout_ids)
            self.add_rollouts([replace(ROLLOUT, rollout_id="late")])
            self.start_attempt("late", 1)
            self.add_call(captured("late", 1, (1,), (2,), rollout_id="late"))
            self.finish_attempt("late", 1, Outcome.INFRASTRUCTURE, rewards=[Reward(0.0)])
            return read

    store = Written(None)
    store.add_rollouts([ROLLOUT])
    store.start_attempt("r", 1)
    store.add_call(CALLS[0])
    store.finish_attempt("r", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0)])
    data = build_transitions(store)
    assert [(one.rollout_id, one.rewards) for one in data.transitions] == [("r", {"task": 1.0})]
    assert data.counts() == {DataFinding.NO_ATTEMPT: 1}


def sequences(tree: Any, count: int) -> list[tuple[int, ...]]:
    paths = [[node for node in tree.nodes if index in {one.index for one in node.serves}] for index in range(count)]
    return [tuple(token for node in path for token in node.ids) for path in paths]


def test_what_transitions_share_is_in_the_trie_once() -> None:
    """1 2 3 4 | 1 2 3 | 1 2 5 | 9: the nodes are 1 2, below it 3 and 5, below 3 a 4, and 9."""
    base = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL]).transitions[0]
    rows = [((1, 2), (3, 4)), ((1, 2), (3,)), ((1,), (2, 5)), ((), (9,))]
    tree = make_tree([replace(base, prompt_ids=prompt, response_ids=reply) for prompt, reply in rows])
    assert [(node.parent, node.depth, node.ids) for node in tree.nodes] == [
        (-1, 0, (1, 2)),
        (0, 2, (3,)),
        (1, 3, (4,)),
        (0, 2, (5,)),
        (-1, 0, (9,)),
    ]
    assert [(one.index, one.start, one.stop) for one in tree.nodes[1].serves] == [(0, 2, 3), (1, 2, 3)]
    assert (tree.total, tree.distinct) == (4 + 3 + 3 + 1, 6)


def test_every_transition_can_be_read_out_of_the_trie() -> None:
    chance = random.Random(1)
    base = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL]).transitions[0]
    for _ in range(200):
        rows = [tuple(chance.choices((1, 2), k=chance.randint(1, 9))) for _ in range(chance.randint(1, 12))]
        made = [replace(base, prompt_ids=row[:-1], response_ids=row[-1:]) for row in rows]
        tree = make_tree(made)
        assert sequences(tree, len(rows)) == rows
        assert tree.distinct == len({row[:end] for row in rows for end in range(1, len(row) + 1)})
        assert all(node.parent < number for number, node in enumerate(tree.nodes))


def test_a_very_long_sequence_needs_no_recursion() -> None:
    base: Transition = assemble([ROLLOUT], [ATTEMPT], CALLS[:1], [FINAL]).transitions[0]
    made = [replace(base, prompt_ids=tuple(range(length)), response_ids=(-1,)) for length in range(1, 1201)]
    assert make_tree(made).distinct == 1200 + 1200  # 0 to 1199 once, and as many ends


def test_records_become_transitions_with_credit_chains_and_tries() -> None:
    data = make_transitions(Records((ROLLOUT,), (ATTEMPT,), tuple(CALLS), (FINAL,)))
    assert all(turn.advantages is None for turn in data.transitions)
    credited = assign_credit(data)
    chains = make_chains(credited.transitions)
    assert sum(sum(chain.mask) for chain in chains) == 3
    assert [chain.ids for chain in chains] == [(1, 2, 3, 4), (5, 6)]
    (rollouts,) = credited.groups().values()
    assert make_tree([turn for rollout in rollouts for turn in rollout]).distinct == 6


def test_credit_keeps_what_found_no_transition() -> None:
    lost = Reward(0.5, "task", "r", 1, response_id="nowhere")
    assert assign_credit(assemble([ROLLOUT], [ATTEMPT], CALLS, [FINAL, lost])).unassigned == (lost,)


OTHER = Rollout("q", "t", "run", {}, 0.0)


def of_other(made: Span) -> Span:
    return replace(made, rollout_id="q", span_id=f"q-{made.span_id}")


def test_what_is_said_in_another_rollout_changes_nothing_here() -> None:
    calls = [captured("c0", 0, (7,), (8,), tool_call_ids=("t2",)), captured("c1", 1, (1,), (2,))]
    own = [span("s1", "chat", None, **{"gen_ai.response.id": "c1"})]
    tokens = {"lgov.prompt_token_ids": [9], "lgov.response_token_ids": [9], "lgov.response_logprobs": [-1.0]}
    claims = [
        span("agent", "invoke_agent", None, **{"gen_ai.agent.name": "theirs", "team": "theirs"}),
        span("call", "chat", "q-agent", **{"gen_ai.response.id": "c1", "lgov.tool_call_ids": ["t1"], **tokens}),
        span("tool", "execute_tool", None, **{"gen_ai.response.id": "c1", "gen_ai.tool.call.id": "t2"}),
        span("inside", "chat", "q-tool", **{"gen_ai.response.id": "c1"}),
        span("judged", "", None, **{"lgov.reward.value": 9.0, "gen_ai.response.id": "c1"}),
    ]
    theirs = [of_other(one) for one in claims]
    rewards = [Reward(0.5, rollout_id="r", attempt=1, tool_call_id="t2", reward_id="w")]
    for spans in (own, []):
        for selection in (Selection(), Selection(agents=("theirs",)), Selection(attributes={"team": "theirs"})):
            alone, both = (
                assemble([ROLLOUT, OTHER], [ATTEMPT], calls, rewards, given, selection)
                for given in (spans, [*spans, *theirs])
            )
            assert [one for one in both.transitions if one.rollout_id == "r"] == list(alone.transitions)
            assert [one.reward_id for one in both.unassigned if one.rollout_id == "r"] == [
                one.reward_id for one in alone.unassigned
            ]
            assert not [one for one in both.diagnostics if one.finding is DataFinding.CLAIM_DIFFERS]
