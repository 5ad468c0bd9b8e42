"""Verifies what a training captured: each call's text from its tokens, its log-probabilities from the served weights.

Nothing of the engine's decoding takes part: each call is a row of one full-sequence float32 forward pass without a cache.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from lgov_core.errors import EndpointError, SettingsError, TrainError
from lgov_core.evaluation.model import moved_base, policy_of
from lgov_core.models import LanguageModel, load_model
from lgov_core.models.tool_formats import message_text
from lgov_core.server.run_state import read_start
from lgov_core.store import open_store, store_of
from lgov_core.train.layout.rows import TrainRow, batches_by_length, row_logprobs
from lgov_core.train.loop.checkpoint import load_weights
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.types import CapturedCall
from lgov_core.wire.chat import read_chat_request
from lgov_core.wire.exchange import ChatRequest


def verify_run(
    path: Path,
    *,
    tolerance: float = 1e-3,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Checks every captured call of a training's folder, or ``limit`` of them, evenly spread.

    The tokens of each must be exactly the text that was received and sent (`CapturedText`), and its recorded
    log-probabilities must be within ``tolerance`` of those that the weights of its version give. Calls whose weights
    are not kept (``training.keep_weights``) count as unchecked. ``progress(done, total)`` is called now and then.
    Nothing is written. Raises `SettingsError` when ``path`` is not such a folder, other `LgovError` when store, model or
    weights cannot be read.
    """
    base = _base_of(path)
    model = load_model(base, dtype="float32")
    report = progress or (lambda done, total: None)
    with contextlib.closing(open_store(path, make=False)) as store:
        recorded = sum(1 for _ in store.calls())
        chosen = recorded if limit is None else min(limit, recorded)
        result = Verification(recorded, tolerance)
        texts = CapturedText(model)
        recomputation = Recomputation(ServedWeights(path, base, model.module), model, result)
        for number, call in enumerate(islice(store.calls(), recorded)):
            texts.remember(call)
            # Bresenham's line: true for exactly `chosen` of the numbers, evenly spread.
            if number * chosen // recorded == (number + 1) * chosen // recorded:
                continue
            result.calls += 1
            problem = texts.problem(call)
            if problem is None:
                result.decoded_ok += 1
            else:
                result.decoded_bad += 1
                result.add(call, problem)
            recomputation.add(call)
            for done in recomputation.run() if recomputation.full else ():
                report(done, chosen)
        for done in recomputation.run():
            report(done, chosen)
    return result


def _base_of(path: Path) -> str:
    """The model that the training in ``path`` began with. Raises `SettingsError` when it is not the folder of one."""
    inner = sorted(store.parent.name for store in path.glob("*/store.sqlite"))
    hint = (
        f"name one of the folders in it: {', '.join(inner)}" if inner else "name the folder of lgov train or lgov demo"
    )
    if not (path / "server.json").is_file() or store_of(path) == str(path):
        name = "store" if (path / "server.json").is_file() else "server.json"
        raise SettingsError(f"{path} is not the folder of a training: it has no {name}", hint=hint)
    try:
        named = read_start(path).model
    except TrainError as error:
        raise SettingsError(error.message, hint=error.hint) from error
    if named is None:
        raise SettingsError(f"{path / 'server.json'} names no model", hint="without it nothing can be recomputed")
    base = moved_base(named, path.resolve())
    if Path(base).is_absolute() and not (Path(base) / "config.json").is_file():
        raise SettingsError(f"the model {base} of run {path} is gone", hint="without it nothing can be recomputed")
    return base


_FINDINGS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A wrong call. ``logprob_diff`` is the largest absolute difference, if it is a number."""

    rollout_id: str | None
    attempt: int | None
    response_id: str
    weights_version: int | None
    problem: str
    logprob_diff: float | None = None


@dataclass(slots=True)
class VersionCount:
    """The calls that one version of the weights answered; ``version`` is None when it was not recorded.

    ``checked`` calls had their log-probabilities recomputed, ``unchecked`` ones could not because the version's weights
    are not kept. ``mismatched`` are off by more than the tolerance or have none that can be compared.
    """

    version: int | None
    calls: int = 0
    checked: int = 0
    unchecked: int = 0
    mismatched: int = 0
    max_logprob_diff: float = 0.0


@dataclass(slots=True)
class Verification:
    """``recorded`` calls are in the store, ``calls`` of them were verified.

    ``findings`` holds the first few problems; the counts hold all.
    """

    recorded: int
    tolerance: float
    calls: int = 0
    decoded_ok: int = 0
    decoded_bad: int = 0
    findings: list[Mismatch] = field(default_factory=list[Mismatch])
    by_version: dict[int | None, VersionCount] = field(default_factory=dict[int | None, VersionCount])

    @property
    def versions(self) -> list[VersionCount]:
        """One count a version, in order."""
        return sorted(self.by_version.values(), key=lambda version: -1 if version.version is None else version.version)

    @property
    def total(self) -> VersionCount:
        """The counts of all versions together."""
        every = self.by_version.values()
        return VersionCount(
            None,
            sum(version.calls for version in every),
            sum(version.checked for version in every),
            sum(version.unchecked for version in every),
            sum(version.mismatched for version in every),
            max((version.max_logprob_diff for version in every), default=0.0),
        )

    @property
    def passed(self) -> bool:
        """True where at least one call was checked, and none is wrong."""
        return self.total.checked > 0 and not self.decoded_bad and not self.total.mismatched

    def add(self, call: CapturedCall, problem: str, diff: float | None = None) -> None:
        """Records a finding about a call, unless there are many already."""
        if len(self.findings) < _FINDINGS_KEPT:
            about = (call.rollout_id, call.attempt, call.response_id, call.weights_version)
            self.findings.append(Mismatch(*about, problem, diff))

    def as_json(self) -> dict[str, Any]:
        """All numbers as plain JSON values."""
        names = ("passed", "recorded", "calls", "decoded_ok", "decoded_bad", "tolerance")
        totals = ("checked", "unchecked", "mismatched", "max_logprob_diff")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: getattr(self.total, name) for name in totals},
            "versions": [asdict(version) for version in self.versions],
            "findings": [asdict(finding) for finding in self.findings],
        }


#: So many replies are remembered: twice as many as the embedded engine remembers.
_REPLIES = 16_384


@dataclass(frozen=True, slots=True)
class _Reply:
    """The calls that the agent received (`_call_value` of each call), and the model's text for it."""

    content: str
    calls: list[tuple[Any, ...]]
    text: str


class CapturedText:
    """Compares the tokens of captured calls with the JSON that was received and sent.

    A prompt repeats an earlier reply with tool calls as the model wrote it, where the client sent the calls back
    unchanged; so every call must be given to `remember`, in the order of the store, before the later ones are judged.
    Not thread-safe.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._vocabulary = int(model.module.config.vocab_size)
        self._replies: OrderedDict[str, _Reply] = OrderedDict()

    def remember(self, call: CapturedCall) -> None:
        """Keeps a reply that proposed tool calls. One whose tokens cannot be read is not kept."""
        if call.tool_call_ids and call.response_ids and self._readable(call.response_ids):
            try:
                message = call.response["choices"][0]["message"]
                content, calls = message_text(message), [_call_value(tool_call) for tool_call in message["tool_calls"]]
            except (LookupError, TypeError, AttributeError, EndpointError):
                return  # `problem` says so
            self._replies[call.tool_call_ids[0]] = _Reply(content, calls, self._reply_text(call.response_ids)[0])
            if len(self._replies) > _REPLIES:
                self._replies.popitem(last=False)

    def problem(self, call: CapturedCall) -> str | None:
        """Returns the mismatch, in words; None when the tokens of prompt and reply are exactly the text.

        The reply's tokens must decode to its content and, parsed, to its tool calls; the prompt's to the rendered
        messages and tools of the request.
        """
        prompt, reply = call.prompt_ids, call.response_ids
        if not prompt or not reply:
            return "its token ids were not recorded"
        if not self._readable(prompt) or not self._readable(reply):
            return f"a token id is not in the vocabulary of {self._vocabulary}"
        try:
            request = read_chat_request(call.request)
            return self._reply_problem(call, request, reply) or self._prompt_problem(request, prompt)
        except EndpointError as error:
            return f"the recorded request cannot be rendered: {error}"

    def _readable(self, ids: Sequence[int]) -> bool:
        return min(ids) >= 0 and max(ids) < self._vocabulary

    def _reply_text(self, ids: Sequence[int]) -> tuple[str, bool]:
        """The text of a reply without its end token, and whether it had one."""
        ended = ids[-1] in self._model.eos_ids
        return self._model.decode(ids[:-1] if ended else ids), ended

    def _reply_problem(self, call: CapturedCall, request: ChatRequest, ids: Sequence[int]) -> str | None:
        text, ended = self._reply_text(ids)
        stops = [position for word in request.stop if (position := text.find(word)) >= 0]
        content: str | None = text[: min(stops)] if stops else text
        finish = "stop" if ended or stops else "length"
        calls: list[tuple[str, str]] = []
        if request.tools and finish == "stop":
            parsed = self._model.format.parse(content or "", request.tools)
            content = parsed.content
            calls = [(parsed_call.name, parsed_call.arguments_text) for parsed_call in parsed.calls]
        try:
            choice = call.response["choices"][0]
            message, reported = choice["message"], choice["finish_reason"]
            received = [(tool_call["id"], tool_call["function"]) for tool_call in message.get("tool_calls") or ()]
            received_calls = [(function["name"], function["arguments"]) for _, function in received]
            received_content = message["content"]
        except (LookupError, TypeError, AttributeError):
            return "the recorded response is not a chat completion"
        if received_content != content:
            return f"the reply's tokens say {_shown(content)}, the agent got {_shown(received_content)}"
        if received_calls != calls:
            return f"the reply's tokens call {_shown(calls)}, the agent got {_shown(received_calls)}"
        if tuple(call_id for call_id, _ in received) != call.tool_call_ids:
            return "the ids of the tool calls are not those that the agent got"
        finish = "tool_calls" if calls else finish
        if not finish == reported == call.finish_reason:
            return (
                f"the reply's tokens end by {finish!r}, recorded is {call.finish_reason!r}, the agent got {reported!r}"
            )
        return None

    def _prompt_problem(self, request: ChatRequest, ids: Sequence[int]) -> str | None:
        text = self._model.decode(ids)
        verbatim = [self._verbatim(message) for message in request.messages]
        # An engine that was started anew does not know the replies of the one before, and renders them from their JSON.
        for messages in (verbatim, request.messages):
            rendered = self._model.text.plain(self._model.render_text(messages, request.tools))
            if rendered == text:
                return None
        at = next((n for n, (a, b) in enumerate(zip(text, rendered, strict=False)) if a != b), len(rendered))
        return f"the prompt's tokens say {_shown(text[at:])} where the request says {_shown(rendered[at:])}"

    def _verbatim(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message; when it holds the calls of a remembered reply unchanged, the reply as the model wrote it."""
        calls = message.get("tool_calls") or ()
        reply = self._replies.get(str(calls[0].get("id"))) if message.get("role") == "assistant" and calls else None
        if reply is None or message_text(message) != reply.content or list(map(_call_value, calls)) != reply.calls:
            return message
        return {"role": "assistant", "content": reply.text}


def _call_value(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """A tool call without the white space that clients write anew; broken JSON as it is."""
    function = call["function"]
    arguments = function.get("arguments") or ""
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), sort_keys=True)
    return call.get("id"), function["name"], arguments


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


#: Calls that wait for their forward pass: enough to find others of the same length, few enough for the memory.
_WAITING = 1024
_TOKENS_PER_PASS = 2048


class ServedWeights:
    """The module as it served each version. Changes the module it is given, which must hold version 0."""

    def __init__(self, run: Path, base: str, module: Any) -> None:
        self._run, self._base = run, base
        self._module = module
        self._version = 0
        self._policy: PolicyModel | None = None

    def at(self, version: int) -> Any | None:
        """The module with the weights of ``version``; None when they are not kept. Raises `TrainError` for wrong ones."""
        if version == self._version:
            return self._module
        if version == 0:
            served: Any = load_model(self._base, dtype="float32").module.state_dict()
        else:
            trained = load_weights(self._run / "weights", version)
            if trained is None:
                return None
            if self._policy is None:  # made while the module still holds version 0
                self._policy = policy_of(self._module, trained)
            try:
                self._policy.load(trained)
            except RuntimeError as error:
                raise TrainError(f"the weights of version {version} are not of this model: {error}") from error
            served = self._policy.served()
        unknown = self._module.load_state_dict(dict(served), strict=False).unexpected_keys
        if unknown:
            raise TrainError(f"version {version} has weights that the served model has not, such as {unknown[0]!r}")
        self._version = version
        return self._module


class Recomputation:
    """Calls that wait for their forward pass, done together by version and length."""

    def __init__(self, weights: ServedWeights, model: LanguageModel, result: Verification) -> None:
        self._weights = weights
        self._vocabulary = int(model.module.config.vocab_size)
        self._result = result
        self._waiting: dict[int, list[tuple[TrainRow, CapturedCall]]] = {}
        self._count = 0
        self._done = 0

    @property
    def full(self) -> bool:
        """True when enough calls wait."""
        return self._count >= _WAITING

    def add(self, call: CapturedCall) -> None:
        """Lets a call wait; counts one that cannot be computed."""
        version = call.weights_version
        count = self._result.by_version.setdefault(version, VersionCount(version))
        count.calls += 1
        row = self._row(call)
        if row is None:
            count.mismatched += 1
            self._result.add(call, "it has no log-probabilities that could be compared")
            self._done += 1
        elif version is None:
            count.unchecked += 1
            self._done += 1
        else:
            self._waiting.setdefault(version, []).append((row, call))
            self._count += 1

    def run(self) -> Iterator[int]:
        """Computes what waits; yields now and then how many calls are done."""
        for version in sorted(self._waiting):
            pairs = sorted(self._waiting[version], key=lambda pair: len(pair[0].ids))
            module = self._weights.at(version)
            if module is None:
                self._result.by_version[version].unchecked += len(pairs)
                self._done += len(pairs)
            else:
                calls = (call for _, call in pairs)
                for batch in batches_by_length([row for row, _ in pairs], _TOKENS_PER_PASS):
                    self._compare(module, batch, list(islice(calls, len(batch))))
                    self._done += len(batch)
                    yield self._done
        self._waiting.clear()
        self._count = 0
        yield self._done

    def _row(self, call: CapturedCall) -> TrainRow | None:
        prompt, reply, logprobs = call.prompt_ids, call.response_ids, call.logprobs
        if not prompt or not reply or logprobs is None or len(logprobs) != len(reply):
            return None
        ids = (*prompt, *reply)
        if min(ids) < 0 or max(ids) >= self._vocabulary or not all(map(math.isfinite, logprobs)):
            return None
        blank, zeros = (0.0,) * len(prompt), (0.0,) * len(ids)
        mask = (0,) * len(prompt) + (1,) * len(reply)
        return TrainRow(ids, mask, (*blank, *logprobs), zeros, zeros, call.temperature)

    def _compare(self, module: Any, rows: Sequence[TrainRow], calls: Sequence[CapturedCall]) -> None:
        with torch.inference_mode():
            computed = row_logprobs(module, rows)
        recorded = [torch.tensor(call.logprobs, dtype=torch.float64) for call in calls]
        for call, own, theirs in zip(calls, recorded, computed.double().split(list(map(len, recorded))), strict=True):
            count = self._result.by_version[call.weights_version]
            count.checked += 1
            diff = float((own - theirs).abs().max())
            if math.isfinite(diff):
                count.max_logprob_diff = max(count.max_logprob_diff, diff)
            if not diff <= self._result.tolerance:
                count.mismatched += 1
                what = f"recorded and recomputed log-probabilities differ by up to {diff:.3g}"
                self._result.add(call, what, diff if math.isfinite(diff) else None)
