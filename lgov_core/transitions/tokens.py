"""Token sequences of several calls: chains, tries, and retokenisation drift.

A chain joins the turns of one agent whose tokens extend one another. A trie holds what the calls of a group have in common
once; it is pure structure, no tensors. Drift is where the conversation went on and its tokens are not those that the model had
seen and written: a reply's text was tokenised anew, or rendered otherwise (a tool call as JSON with other spaces, thinking left
out). What is trained then is not what was sampled, so such turns are never joined, and the difference is a diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from lgov_core._util.containers import PrefixIndex, common_prefix
from lgov_core.transitions.transition_set import DataFinding, Diagnostic, Transition, by_rollout
from lgov_core.types import CapturedCall


@dataclass(frozen=True, slots=True)
class Link:
    """One transition in a chain: its reply is at ``start`` to ``stop`` (without) of the chain's tokens."""

    transition: Transition
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Chain:
    """One sequence of N tokens that holds one turn or several of one agent in one attempt.

    ``ids`` (int, length N) begin with the first turn's prompt; then come its reply, what the tools or the surroundings
    said, the next reply, and so on. ``mask`` (length N) is 1 where a model chose the token and it may be trained on; all
    that was said to the model is 0. ``logprobs`` (length N) are those recorded, 0.0 where the mask is 0; None if one of the
    turns has none. ``advantages`` and ``weights`` (length N) are each token's own, 0.0 where the mask is 0; None if
    one of the turns has no credit yet. ``prompt_length`` is how many tokens come before the first reply.
    """

    rollout_id: str
    attempt: int
    task_id: str
    agent: str | None
    model: str
    temperature: float
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    advantages: tuple[float, ...] | None
    weights: tuple[float, ...] | None
    links: tuple[Link, ...]

    @property
    def prompt_length(self) -> int:
        """How many tokens come before the first reply."""
        return self.links[0].start

    def as_row(self) -> dict[str, Any]:
        """The chain as one row of plain JSON types.

        ``prompt_ids`` are the first turn's, ``response_ids`` all that follows; the lists after them have its length.
        """
        at = self.prompt_length
        last = self.links[-1].transition
        rewards: dict[str, float] = {}
        for link in self.links:
            for name, value in link.transition.rewards.items():
                rewards[name] = rewards.get(name, 0.0) + value
        return {
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "task_id": self.task_id,
            "agent": self.agent,
            "model": self.model,
            "prompt_ids": list(self.ids[:at]),
            "response_ids": list(self.ids[at:]),
            "response_mask": list(self.mask[at:]),
            "logprobs": None if self.logprobs is None else list(self.logprobs[at:]),
            "advantages": None if self.advantages is None else list(self.advantages[at:]),
            "loss_weights": None if self.weights is None else list(self.weights[at:]),
            "sampling": {"temperature": self.temperature},
            "rewards": rewards,
            "outcome": None if last.outcome is None else last.outcome.value,
            "held_out": last.held_out,
            "turns": [
                {
                    "turn": link.transition.turn,
                    "response_id": link.transition.response_id,
                    "choice": link.transition.choice,
                    "start": link.start - at,
                    "stop": link.stop - at,
                    "weights_version": link.transition.weights_version,
                    "rewards": dict(link.transition.rewards),
                    "return": link.transition.value_to_go,
                    "credit": link.transition.credit,
                }
                for link in self.links
            ],
        }


def make_chains(transitions: Sequence[Transition]) -> list[Chain]:
    """Joins the turns of each agent in an attempt; every transition is in exactly one chain.

    A turn goes on the chain with the longest sequence that its prompt begins with, exactly, token by token, among those
    of the same rollout, attempt, agent, model and temperature; agents whose turns alternate so get a chain each. A turn
    whose context was rewritten, or whose tokens drifted, begins a chain of its own, and a choice that was set aside is one.
    Chains are in the order of their first turns. Pure; callable from any thread.
    """
    chains: list[list[Transition]] = []
    for turns in by_rollout(transitions).values():
        ends: dict[tuple[str | None, str, float], PrefixIndex[tuple[int, ...]]] = {}
        for turn in turns:
            own = ends.setdefault((turn.agent, turn.model, turn.temperature), PrefixIndex())
            number = None if turn.set_aside else own.take_longest(turn.prompt_ids)
            if number is None:
                number = len(chains)
                chains.append([])
            chains[number].append(turn)
            if not turn.set_aside:
                own.add(turn.prompt_ids + turn.response_ids, number)
    return [_chain(turns) for turns in chains]


def _chain(turns: Sequence[Transition]) -> Chain:
    first, last = turns[0], turns[-1]
    ids = last.prompt_ids + last.response_ids
    mask = [0] * len(ids)
    links: list[Link] = []
    for turn in turns:
        start = len(turn.prompt_ids)
        links.append(Link(turn, start, start + len(turn.response_ids)))
        mask[start : links[-1].stop] = turn.response_mask
    advantages = _on_chain(links, len(ids), [turn.advantages for turn in turns])
    weights = _on_chain(links, len(ids), [[turn.loss_weight] * len(turn.response_ids) for turn in turns])
    return Chain(
        first.rollout_id,
        first.attempt,
        first.task_id,
        first.agent,
        first.model,
        first.temperature,
        ids,
        tuple(mask),
        _on_chain(links, len(ids), [turn.logprobs for turn in turns]),
        advantages,
        None if advantages is None else weights,
        tuple(links),
    )


def _on_chain(
    links: Sequence[Link], length: int, of_turns: Sequence[Sequence[float] | None]
) -> tuple[float, ...] | None:
    """Values of the turns' response tokens at their places in the chain, else 0.0; None where a turn has none."""
    filled = [0.0] * length
    for link, values in zip(links, of_turns, strict=True):
        if values is None:
            return None
        kept = zip(values, link.transition.response_mask, strict=True)
        filled[link.start : link.stop] = [value if mask else 0.0 for value, mask in kept]
    return tuple(filled)


@dataclass(frozen=True, slots=True)
class Served:
    """A node's tokens are those at ``start`` to ``stop`` (without) of sequence number ``index``.

    The sequence of a transition is its prompt and reply.
    """

    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenNode:
    """A run of tokens that no sequence parts from in the middle.

    ``parent`` is the number of the node above, -1 at a top; ``depth`` how many tokens are above the first of ``ids``
    (its position). ``serves`` names every sequence whose tokens lead through the whole node.
    """

    parent: int
    depth: int
    ids: tuple[int, ...]
    serves: tuple[Served, ...]


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The trie over prompt and reply of ``transitions``.

    ``nodes`` are in depth-first order: a node is after its parent, and its descendants follow it directly, so
    that the tokens one after the other are a layout in which every ancestor comes before its descendants. ``total``
    tokens of all transitions are ``distinct`` tokens in the tree.
    """

    transitions: tuple[Transition, ...]
    nodes: tuple[TokenNode, ...]

    @property
    def total(self) -> int:
        """Tokens of prompt and reply over all transitions."""
        return sum(len(transition.prompt_ids) + len(transition.response_ids) for transition in self.transitions)

    @property
    def distinct(self) -> int:
        """Tokens in the tree: what a shared-prefix update computes."""
        return sum(len(node.ids) for node in self.nodes)

    def statistics(self) -> dict[str, float]:
        """``transitions``, ``nodes``, ``total``, ``distinct`` and how many times less (``saved_factor``)."""
        total, distinct = self.total, self.distinct
        return {
            "transitions": len(self.transitions),
            "nodes": len(self.nodes),
            "total": total,
            "distinct": distinct,
            "saved_factor": total / distinct if distinct else 1.0,
        }


def make_tree(transitions: Sequence[Transition]) -> TokenTree:
    """The trie of ``transitions``, in practice those of one group. Linear in their tokens, without recursion; pure."""
    return TokenTree(
        tuple(transitions), make_nodes([transition.prompt_ids + transition.response_ids for transition in transitions])
    )


def make_nodes(sequences: Sequence[tuple[int, ...]]) -> tuple[TokenNode, ...]:
    """The trie of token sequences, in depth-first order. What a node serves are numbers of ``sequences``. Pure."""
    tops: dict[int, _Run] = {}
    for index, ids in enumerate(sequences):
        _insert(tops, ids, index)
    nodes: list[TokenNode] = []
    waiting = [(run, -1, 0) for run in reversed(tops.values())]
    while waiting:
        run, parent, depth = waiting.pop()
        stop = depth + len(run.ids)
        waiting.extend((below, len(nodes), stop) for below in reversed(run.below.values()))
        nodes.append(TokenNode(parent, depth, run.ids, tuple(Served(index, depth, stop) for index in run.serves)))
    return tuple(nodes)


@dataclass(slots=True)
class _Run:
    """A node in the making: ``ids``, what follows by its first token, and which transitions lead through it."""

    ids: tuple[int, ...]
    below: dict[int, _Run]
    serves: list[int]


def _insert(below: dict[int, _Run], ids: tuple[int, ...], index: int) -> None:
    at = 0
    while at < len(ids):
        run = below.get(ids[at])
        if run is None:
            below[ids[at]] = _Run(ids[at:], {}, [index])
            return
        common = common_prefix(run.ids, ids[at : at + len(run.ids)])
        if common < len(run.ids):
            # The new sequence parts from the run, or ends in it: what comes after is a node of its own.
            rest = _Run(run.ids[common:], run.below, list(run.serves))
            run.ids, run.below = run.ids[:common], {rest.ids[0]: rest}
        run.serves.append(index)
        below, at = run.below, at + common


#: Earlier conversations that a call is compared with, the latest first.
_LOOK_BACK: Final = 16


def find_drift(calls: Iterable[CapturedCall], diagnostics: list[Diagnostic]) -> None:
    """Tells of each call of one attempt (in order, with token ids) that goes on from an earlier one in other tokens.

    A call goes on from one of the same agent if its messages begin with that one's messages and reply; where messages are
    not on record, if its prompt begins with the whole of that one's prompt and is longer. A context that was rewritten
    is not drift.
    """
    by_agent: dict[tuple[str | None, str], list[CapturedCall]] = {}
    for call in calls:
        by_agent.setdefault((call.agent, call.model), []).append(call)
    for own in by_agent.values():
        _find_in(own, diagnostics)


def _find_in(own: Iterable[CapturedCall], diagnostics: list[Diagnostic]) -> None:
    ends: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    waiting: dict[int, CapturedCall] = {}  # those that nothing has gone on from
    for number, call in enumerate(own):
        prompt = call.prompt_ids or ()
        continued = ends.take_longest(prompt)
        if continued is not None:
            del waiting[continued]
        elif waiting:
            _compare(call, prompt, waiting, diagnostics)
        ends.add(prompt + (call.response_ids or ()), number)
        waiting[number] = call


def _compare(
    call: CapturedCall, prompt: tuple[int, ...], waiting: dict[int, CapturedCall], diagnostics: list[Diagnostic]
) -> None:
    conversation = _conversation(call.request)
    for earlier in islice(reversed(waiting.values()), _LOOK_BACK):
        its_prompt, its_conversation = earlier.prompt_ids or (), _conversation(earlier.request)
        if conversation is not None and its_conversation is not None:
            goes_on = _goes_on(conversation, its_conversation, earlier)
        else:
            goes_on = len(prompt) > len(its_prompt) and prompt[: len(its_prompt)] == its_prompt
        if goes_on:
            at = common_prefix(prompt, its_prompt + (earlier.response_ids or ()))
            detail = f"it goes on from {earlier.response_id} in other tokens, from position {at} on"
            diagnostics.append(Diagnostic(DataFinding.RETOKENISATION_DRIFT, call.response_id, detail))
            return


def _goes_on(now: Sequence[Any], before: Sequence[Any], earlier: CapturedCall) -> bool:
    """Returns whether the messages ``now`` are those ``before`` and the reply of ``earlier``, and perhaps more."""
    if len(now) <= len(before) or list(now[: len(before)]) != list(before):
        return False
    following = now[len(before)]
    if not isinstance(following, Mapping) or following.get("role", "assistant") not in ("assistant", "model"):
        return False
    reply, kept = _reply_text(earlier), _text(following)
    return not reply or not kept or reply == kept


def _conversation(request: Mapping[str, Any]) -> Sequence[Any] | None:
    for name in ("messages", "input"):
        messages = request.get(name)
        if isinstance(messages, list | tuple) and messages:
            return messages
    return None


def _reply_text(call: CapturedCall) -> str:
    response = call.response
    choices = response.get("choices")
    if isinstance(choices, Sequence) and choices:
        chosen = choices[call.choice] if call.choice < len(choices) else choices[0]
        return _text(chosen.get("message")) if isinstance(chosen, Mapping) else ""
    for name in ("messages", "output"):
        messages = response.get(name)
        if isinstance(messages, Sequence) and not isinstance(messages, str) and messages:
            return _text(messages[0])
    return _text(response)


def _text(message: object) -> str:
    """The text of a message, in whatever API's form; empty where there is none."""
    if isinstance(message, str):
        return message.strip()
    if not isinstance(message, Mapping):
        return ""
    parts: Any = message.get("content") or message.get("parts") or message.get("text") or ""
    if isinstance(parts, str):
        return parts.strip()
    if not isinstance(parts, Sequence):
        return ""
    texts = [part.get("text") or part.get("content") or "" for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str)).strip()
