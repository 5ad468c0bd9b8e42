"""One model call as the trainer saw it: columns over its tokens, with the text of each where the tokenizer is known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core._util.containers import common_prefix
from lgov_core.errors import ModelError
from lgov_core.store import TraceStore
from lgov_core.transitions import DataFinding
from lgov_core.transitions.build import CUT_OFF
from lgov_core.types import CapturedCall
from lgov_core.views.attempt_builder import NotRecorded
from lgov_core.views.pages.timeline import call_name
from lgov_core.views.pages.training import Trained, start_model

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


def token_columns(
    store: TraceStore,
    rollout_id: str,
    attempt: int,
    call: str,
    trained: Trained,
    texts: TokenTexts | None,
    first: int,
    count: int,
) -> dict[str, Any]:
    """The positions ``first`` to ``first + count`` of prompt and reply of a call. Raises `StoreError`, `NoTokens`."""
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
        "shared": _shared(prompt, own[:at]),
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


def _shared(prompt: tuple[int, ...], earlier: Sequence[CapturedCall]) -> int:
    """How many leading tokens of a prompt are those of an earlier call of the attempt and its reply."""
    contexts = ((*(call.prompt_ids or ()), *(call.response_ids or ())) for call in earlier)
    return max((common_prefix(prompt, context) for context in contexts), default=0)


def _drift(trained: Trained, call: CapturedCall) -> dict[str, Any] | None:
    for diagnostic in trained.diagnostics:
        if diagnostic.finding is DataFinding.RETOKENISATION_DRIFT and diagnostic.subject == call.response_id:
            position = _POSITION.search(diagnostic.detail)
            return {"at": int(position.group(1)) if position else 0, "detail": diagnostic.detail}
    return None
