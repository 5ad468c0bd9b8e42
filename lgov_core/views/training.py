"""A training as its trainer saw it: figures over its updates, the transitions of a rollout, and the tokens of one call.

Tokens are columns over a call's prompt and reply, with the text of each where the tokenizer is known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

from lgov_core._util.containers import BoundedDict, common_prefix
from lgov_core.audit.lineage import read_attestation, read_lineage
from lgov_core.errors import LgovError, ModelError
from lgov_core.store import TraceStore
from lgov_core.train.loop.run_files import data_file, flat, read_metrics, train_lines
from lgov_core.transitions import DataFinding, Diagnostic, Transition, assign_credit, build_transitions, read_parquet
from lgov_core.transitions.build import CUT_OFF
from lgov_core.types import CapturedCall
from lgov_core.views.attempt_builder import NotRecorded
from lgov_core.views.attempt_view import AttemptView

#: What is drawn, in this order: title, unit, and the series. A star stands for the rest of a name.
_PANELS: Final = (
    ("Reward by channel", "", ("rewards/*",)),
    ("Rollouts with a violation", "share", ("violation_rate", "denied", "executed")),
    ("Success", "share", ("accuracy",)),
    ("KL to the reference", "nats", ("kl",)),
    ("Entropy", "nats", ("entropy",)),
    ("Clipped tokens", "share", ("clip_fraction",)),
    ("Tokens of a reply", "tokens", ("response_tokens",)),
    ("Model calls of a rollout", "calls", ("turns",)),
    ("Staleness", "versions", ("staleness", "staleness_max")),
    ("Tokens of an update", "tokens", ("tokens", "tokens_run", "tokens_saved")),
    ("Groups", "groups", ("groups", "groups_informative", "groups_alike", "groups_replaced")),
    ("Left out", "", ("lost_rollouts", "lost_attempts", "dropped_spans", "unassigned_rewards", "dropped/*")),
)
_COLUMNS: Final = {"/mean": "values", "/low": "low", "/high": "high"}


def run_figures(folder: Path | None, after: int) -> dict[str, Any]:
    """The series of the updates after ``after``; empty ones for a folder without metrics. Raises `TrainError`."""
    lines = _lines(folder)
    train = [line for line in train_lines(lines) if line["step"] > after]
    series = _series(train)
    return {
        "steps": [line["step"] for line in train],
        "series": series,
        "panels": [
            {"title": title, "unit": unit, "series": names}
            for title, unit, patterns in _PANELS
            if (names := [name for pattern in patterns for name in series if fnmatchcase(name, pattern)])
        ],
        "phases": _phases(lines),
        "settings": _settings(folder),
    }


def run_summary(folder: Path | None) -> dict[str, Any]:
    """The row of a folder in the list of runs. Raises `TrainError`."""
    lines = _lines(folder)
    train = train_lines(lines)
    latest = _series(train[-1:])
    statement = last_statement(_newest_checkpoint(folder)) if folder is not None else {}
    update = (statement.get("settings") or {}).get("training") or {}
    model = None if folder is None else start_model(_newest_checkpoint(folder))
    return {
        "steps": len(train),
        "model": None if model is None else Path(model).name,
        "algorithm": update.get("algorithm"),
        "policy": (statement.get("policy") or {}).get("file"),
        "latest": {name: series["values"][0] for name, series in latest.items()},
        "phases": _phases(lines),
    }


def _newest_checkpoint(folder: Path) -> Path:
    return max(folder.glob("checkpoints/step-*"), default=folder)


def _lines(folder: Path | None) -> list[dict[str, Any]]:
    path = None if folder is None else folder / "metrics.jsonl"
    return [] if path is None or not path.is_file() else read_metrics(path)


def _series(train: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every number of the lines by name; a mean with its interval is one series."""
    series: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(train):
        for full, value in flat(line):
            end = next((end for end in (*_COLUMNS, "/count") if full.endswith(end)), "")
            stem, column = full.removesuffix(end), _COLUMNS.get(end, "values")  # a number by itself is a value
            if stem == "step" or end == "/count":
                continue
            columns = series.setdefault(stem, {"values": [None] * len(train), "low": None, "high": None})
            if columns[column] is None:
                columns[column] = [None] * len(train)
            columns[column][number] = value
    return {name: series[name] for name in sorted(series)}


def _phases(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations before, during and after the training."""
    return [
        {"phase": line.get("phase"), "step": line.get("step"), "figures": dict(flat(line))}
        for line in lines
        if line.get("phase") not in ("train", "resume", "failed_update")
    ]


def _settings(folder: Path | None) -> Any:
    if folder is None:
        return None
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return last_statement(_newest_checkpoint(folder)).get("settings")


#: Updates after the weights of a rollout in which it is looked for, and step files whose rollouts are remembered.
_LATER: Final = 12
_REMEMBERED: Final = 256
#: Rollouts of a group for which credit is worked out again.
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Trained:
    """The transitions of one attempt by call, where they come from, and what is wrong with the data."""

    source: Literal["trainer", "recomputed"] | None
    of_call: Mapping[tuple[str, int], Transition]
    step: int | None = None
    diagnostics: Sequence[Diagnostic] = ()


class TrainedBatches:
    """The batches in the folder of a run. Callable from any thread. ``folder`` None, or without pyarrow: there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rollouts: BoundedDict[Path, frozenset[str]] = BoundedDict(_REMEMBERED)

    def of_attempt(self, store: TraceStore, rollout_id: str, attempt: int, group: Sequence[str]) -> Trained:
        """The transitions that were trained on, or else those that the default rules make of ``group``, its task's rollouts.

        Raises `StoreError` when the store cannot be read.
        """
        own = build_transitions(store, [rollout_id], need_logprobs=False)
        versions = [
            transition.weights_version for transition in own.transitions if transition.weights_version is not None
        ]
        # Version 0 is first trained on by update 1.
        for step in range(min(versions) + 1, max(versions) + 1 + _LATER) if versions else ():
            trained = {
                (transition.response_id, transition.choice): transition
                for transition in self._read(step, rollout_id)
                if transition.attempt == attempt and transition.advantages is not None
            }
            if trained:
                return Trained("trainer", trained, step, own.diagnostics)
        if not 1 < len(group) <= _MOST:
            return Trained(None, {}, None, own.diagnostics)
        try:
            credited = assign_credit(build_transitions(store, group, need_logprobs=False))
        except LgovError:
            return Trained(None, {}, None, own.diagnostics)
        mine = [
            transition
            for transition in credited.transitions
            if (transition.rollout_id, transition.attempt) == (rollout_id, attempt)
        ]
        by_call = {(transition.response_id, transition.choice): transition for transition in mine}
        return Trained("recomputed" if by_call else None, by_call, None, own.diagnostics)

    def _read(self, step: int, rollout_id: str) -> Iterable[Transition]:
        """The transitions of a rollout in the batch of an update; none where the file is missing or not whole."""
        if self._folder is None or not (path := data_file(self._folder, step)).is_file():
            return ()
        try:
            if (rollout_ids := self._rollouts.get(path)) is None:
                import pyarrow.parquet as parquet

                rollout_ids = frozenset(parquet.read_table(path, columns=["rollout_id"]).column(0).to_pylist())
                self._rollouts.put(path, rollout_ids)
            return read_parquet(path, rollout_id) if rollout_id in rollout_ids else ()
        except (ImportError, OSError, ValueError, LgovError):  # without the extra, or while the file is written
            return ()


def start_model(checkpoint: Path) -> str | None:
    """The model that training began with, as the checkpoint's own statement names it, unverified."""
    statement = last_statement(checkpoint)
    model = (statement.get("start") or {}).get("model")
    return model if isinstance(model, str) and model else None


def last_statement(checkpoint: Path) -> dict[str, Any]:
    """Reads the last statement in a checkpoint; empty where there is none."""
    try:
        return dict(read_attestation(read_lineage(checkpoint)[-1]).statement["predicate"])
    except (LgovError, OSError, ValueError, LookupError, TypeError):
        return {}


_FILE: Final = "tokenizer.json"


class TokenTexts:
    """Token ids as texts, by a transformers tokenizer (``tokenizer.json``). Callable from any thread.

    A token that is part of a character is shown as the replacement character. Raises `ModelError` when the file cannot be
    read or the package ``tokenizers`` (extra ``train``) is missing.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ModelError("texts of tokens need tokenizers", hint='pip install "lgov[train]"') from error
        file = path / _FILE if path.is_dir() else path
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises Exception itself
            raise ModelError(f"{file} cannot be read: {error}", hint="name a tokenizer.json, or its folder") from error
        self._known: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text of each id; of an id that the tokenizer does not know, its number in brackets."""
        new = [token for token in dict.fromkeys(ids) if token not in self._known]
        decoded: list[str] = self._tokenizer.decode_batch([[token] for token in new], skip_special_tokens=False)
        for token, text in zip(new, decoded, strict=True):
            shown_as = text or self._tokenizer.id_to_token(token)
            self._known[token] = f"[{token}]" if shown_as is None else shown_as
        return [self._known[id_] for id_ in ids]


def find_tokenizer(folder: Path | None) -> Path | None:
    """The tokenizer of the model that a run began with, None where it is not on this machine."""
    if folder is None:
        return None
    return next((folder_ for folder_ in _places(folder) if (folder_ / _FILE).is_file()), None)


def _places(folder: Path) -> Iterator[Path]:
    yield folder
    for checkpoint in sorted(folder.glob("checkpoints/*"), reverse=True):
        yield checkpoint
        if (name := start_model(checkpoint)) is not None:
            yield Path(name)
            yield folder.parent / Path(name).name  # the runs were moved together
            if name == "smollm2":
                from lgov_core.models import smollm2_folder

                yield smollm2_folder()


#: Positions in one answer, at most.
MOST_TOKENS: Final = 40_000
_POSITION: Final = re.compile(r"from position (\d+) on")


class NoTokens(NotRecorded):
    """A call that was recorded without token ids."""

    code = "no_tokens"


def call_name(response_id: str, choice: int) -> str:
    """The name of a call in an address."""
    return f"{response_id}:{choice}"


def token_columns(
    store: TraceStore,
    view: AttemptView,
    call: str,
    trained: Trained,
    texts: TokenTexts | None,
    first: int,
    count: int,
) -> dict[str, Any]:
    """The positions ``first`` to ``first + count`` of prompt and reply of a call. Raises `StoreError`, `NoTokens`."""
    rollout_id, attempt = view.rollout_id, view.attempt
    own = [call for call in store.calls([rollout_id]) if (call.attempt or 1) == attempt]
    at = next(
        (number for number, earlier in enumerate(own) if call_name(earlier.response_id, earlier.choice) == call), None
    )
    if at is None:
        raise NotRecorded(f"attempt {attempt} of rollout {rollout_id} has no call {call}", hint="take it from a step")
    captured = own[at]
    if captured.prompt_ids is None or captured.response_ids is None:
        raise NoTokens(f"call {call} was recorded without token ids", hint="its server returned none")
    prompt, reply = captured.prompt_ids, captured.response_ids
    ids = (*prompt, *reply)
    last = first + min(count, MOST_TOKENS)
    row = trained.of_call.get((captured.response_id, captured.choice))
    advantages = None if row is None else row.advantages
    mask = (1,) * len(reply) if row is None else row.response_mask
    entropy = _entropy(captured)
    contexts = ((*(earlier.prompt_ids or ()), *(earlier.response_ids or ())) for earlier in own[:at])
    return {
        "rollout_id": rollout_id,
        "attempt": attempt,
        "call": call,
        "prompt_count": len(prompt),
        "response_count": len(reply),
        "from": first,
        "next": last if last < len(ids) else None,
        "ids": ids[first:last],
        "texts": None if texts is None else texts.of(ids[first:last]),
        "mask": _cut((0,) * len(prompt), mask, first, last),
        "logprobs": _cut((None,) * len(prompt), captured.logprobs or (None,) * len(reply), first, last),
        "advantages": None if advantages is None else _cut((None,) * len(prompt), advantages, first, last),
        "advantage_source": None if advantages is None else trained.source,
        "entropy": None if entropy is None else _cut((None,) * len(prompt), entropy, first, last),
        **{name: getattr(captured, name) for name in ("weights_version", "temperature", "top_p", "finish_reason")},
        "truncated": captured.finish_reason in CUT_OFF,
        "loss_weight": None if row is None else row.loss_weight,
        # Leading tokens that are those of an earlier call of the attempt and its reply.
        "shared": max((common_prefix(prompt, context) for context in contexts), default=0),
        "drift": _drift(trained, captured),
    }


def _cut(prompt: Sequence[Any], reply: Sequence[Any], first: int, last: int) -> list[Any]:
    """Both parts together from ``first`` to ``last``; what is not finite becomes None."""
    values = [*prompt[first:last], *reply[max(first - len(prompt), 0) : max(last - len(prompt), 0)]]
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]


def _entropy(call: CapturedCall) -> list[float | None] | None:
    """Of each token of a reply the entropy over the likeliest tokens that its server listed (``top_logprobs``), in nats; what
    these leave of the probability counts as one more token. None where the reply lists none.
    """
    try:
        choice = next(each for each in call.response["choices"] if each.get("index", 0) == call.choice)
        listed = [[float(top["logprob"]) for top in token["top_logprobs"]] for token in choice["logprobs"]["content"]]
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError):  # a server may answer anything
        return None
    if not any(listed) or len(listed) != len(call.response_ids or ()):
        return None
    return [_entropy_of([math.exp(min(top, 0.0)) for top in tops]) if tops else None for tops in listed]


def _entropy_of(shares: Sequence[float]) -> float:
    return -math.fsum(share * math.log(share) for share in (*shares, 1.0 - math.fsum(shares)) if share > 0.0)


def _drift(trained: Trained, call: CapturedCall) -> dict[str, Any] | None:
    for diagnostic in trained.diagnostics:
        if diagnostic.finding is DataFinding.RETOKENISATION_DRIFT and diagnostic.subject == call.response_id:
            position = _POSITION.search(diagnostic.detail)
            return {"at": int(position.group(1)) if position else 0, "detail": diagnostic.detail}
    return None
