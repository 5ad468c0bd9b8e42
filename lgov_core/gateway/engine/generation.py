"""The decode loop: prompts in, tokens with their log-probabilities out, many sequences at once.

Sequences join and leave the running batch between any two tokens. Keys and values are cached by prefix: the next turn of
a rollout reads only what is new in it.

Imports torch and transformers; import it only where they are needed. Nothing here is thread-safe: one thread decodes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from lgov_core.gateway.engine.kv_cache import Ids, PrefixCache, SlotCache, check_cacheable, shared_prefixes
from lgov_core.gateway.engine.lora import LoraAdapters
from lgov_core.models import LanguageModel

if TYPE_CHECKING:
    from lgov_core.gateway.engine.reply_codec import GrammarConstraint


#: A constraint decides a token where it leaves less of the model's probability than this.
_OWN = 0.9
#: A uniform number is kept this far below 1, so that the last token of the distribution is not overshot.
_ALMOST_ONE = 1.0 - 2.0**-40


@dataclass(slots=True, eq=False)
class Row:
    """One sequence on its way.

    ``uniforms`` (float64 [max_new_tokens], in [0, 1)) decides its draws, so that its tokens do not depend on what
    else is in the batch. ``policy`` names the adapter that writes it, "" for the model itself. ``finish`` is "" until it
    is stop or length. ``forced`` are the places of tokens that the constraint decided rather than the model. ``abandoned``
    may be set by any thread: its result is no longer needed.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_p: float
    uniforms: torch.Tensor
    stop: tuple[str, ...] = ()
    policy: str = ""
    constraint: GrammarConstraint | None = None
    response_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    forced: list[int] = field(default_factory=list[int])
    finish: str = ""
    abandoned: bool = False

    @property
    def done(self) -> bool:
        """True where it needs no more tokens."""
        return self.abandoned or bool(self.finish)


def draw_uniforms(seed: int, count: int) -> torch.Tensor:
    """``count`` numbers in [0, 1), float64, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).clamp_(max=_ALMOST_ONE)


def draw(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row: ids int64 [rows] and log-probabilities float32 [rows] at the row's temperature.

    ``logits`` is float32 [rows, vocabulary]. Temperature 0 takes the likeliest token and reports its log-probability at
    temperature 1. ``top_p`` and a constraint narrow the choice; the log-probability stays that of the whole distribution, and
    a token that a constraint decided is noted in its row (``forced``).
    """
    device = logits.device
    warmth = torch.tensor([row.temperature or 1.0 for row in rows], device=device)
    logprobs = torch.log_softmax(logits / warmth[:, None], dim=-1)
    greedy = torch.tensor([row.temperature == 0.0 for row in rows], device=device)
    held = [(index, row, row.constraint) for index, row in enumerate(rows) if row.constraint is not None]
    allowed = logprobs.clone() if held else logprobs
    for index, row, constraint in held:
        mask = constraint.allowed(logits.shape[-1]).to(device)
        # Shifted to the likeliest of those that are left: what the model finds improbable may be all there is.
        permitted = allowed[index].masked_fill(~mask, float("-inf"))
        allowed[index] = permitted - permitted.max()
        if float(permitted.logsumexp(-1)) < math.log(_OWN):
            row.forced.append(len(row.response_ids))
    ids = allowed.argmax(dim=-1)
    if not bool(greedy.all()):
        weights = allowed.double().exp_()
        if any(row.top_p < 1.0 for row in rows):
            _narrow(weights, torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device))
        steps = [min(len(row.response_ids), len(row.uniforms) - 1) for row in rows]
        uniforms = torch.stack([row.uniforms[step] for row, step in zip(rows, steps, strict=True)]).to(device)
        total = weights.cumsum_(dim=-1)
        drawn = torch.searchsorted(total, (uniforms * total[:, -1])[:, None], right=True)[:, 0]
        ids = torch.where(greedy, ids, drawn.clamp_(max=logits.shape[-1] - 1))
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]


def _narrow(weights: torch.Tensor, top_p: torch.Tensor) -> None:
    """Sets to zero what is outside the smallest set of tokens that holds ``top_p`` of the weight (float64 [rows])."""
    ordered, places = weights.sort(dim=-1, descending=True)
    sums = ordered.cumsum(dim=-1)
    # Of the weight that there is: a constrained row's is not 1. The likeliest is never outside.
    outside = (sums - ordered) >= (top_p * sums[:, -1])[:, None]
    outside[:, 0] = False
    # A row that is not narrowed keeps everything, whatever rounding makes of its sum.
    outside &= (top_p < 1.0)[:, None]
    weights.scatter_(-1, places, ordered.masked_fill(outside, 0.0))


#: Fewer tokens than these are not worth a forward pass of their own.
_WORTH = 48
#: The most tokens, padding included, that are read at once.
_MOST_READ = 8192
#: Columns reserved for a row's reply when it begins.
_MOST_AHEAD = 128
#: More tokens than this before a stop text cannot be part of it (some tokens have no text of their own).
_SLACK = 8


@dataclass(slots=True)
class _Reading:
    """A sequence of which the tokens from ``start`` are to be read: those before are kept."""

    policy: str
    ids: Ids
    start: int
    row: Row | None = None

    @property
    def rest(self) -> int:
        return len(self.ids) - self.start


class Decoder:
    """One model and the batch that is running. ``forget`` must be called whenever weights changed.

    ``keep_bytes`` bounds what is kept of sequences that are done; 0 keeps nothing from one call to the next.
    """

    def __init__(self, model: LanguageModel, adapters: LoraAdapters | None = None, *, keep_bytes: int = 0) -> None:
        self._layers = check_cacheable(model.module)
        self._model = model
        self._module = cast("Any", model.module)
        # transformers 5.24 renamed the argument; models that it has not renamed keep the old one.
        parameters = inspect.signature(self._module.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._adapters = adapters
        self._prefixes = PrefixCache(keep_bytes)
        self._keeps = keep_bytes > 0
        self._cache: SlotCache | None = None
        #: Whether the engine is ending; set by whoever ends it.
        self.ending = False
        #: The rows of which the prompts are being read.
        self._admitted: Sequence[Row] = ()
        #: The running sequences, one a slot; how many of its tokens each has in the cache.
        self.rows: list[Row] = []
        self._lengths: list[int] = []

    def forget(self, policy: str | None = None) -> None:
        """Drops everything kept that was computed with the present weights, or with those of one policy."""
        self._prefixes.forget(policy)

    def drop_all(self) -> None:
        """Drops the running sequences and the whole prefix cache: some of it may be broken."""
        self.rows, self._lengths, self._cache = [], [], None
        self._prefixes.forget()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the prefix cache."""
        return self._prefixes.size

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> None:
        """Reads the prompts and draws the first token of each row, which then runs with the others.

        When it raises, the others are unharmed. Raises `Interrupted` between two layers once all of the rows are abandoned, or
        the engine is ending: a long prompt takes minutes.
        """
        if self._module.training:
            self._module.eval()
        running = len(self.rows)
        self._admitted = rows
        try:
            for readings in self._shared(rows):
                self._read_apart(readings)
            self._read_running([self._reading(row.policy, row.prompt_ids, row) for row in rows])
        except BaseException:
            del self.rows[running:], self._lengths[running:]
            if not running:
                self._cache = None
            elif self._cache is not None:
                self._cache.wipe(running)
            raise
        finally:
            self._admitted = ()
            if self._keeps:
                self._prefixes.trim()
            else:
                self._prefixes.forget()

    def _is_over(self) -> bool:
        admitted = self._admitted
        return bool(admitted) and (self.ending or all(row.abandoned for row in admitted))

    @torch.inference_mode()
    def step(self) -> None:
        """Draws one more token for every row. Rows that are done are carried along until `drop_finished`."""
        cache = self._cache
        assert cache is not None, "nothing is running"
        device = self._module.device
        longest = max(self._lengths) + 1
        cache.reserve(len(self.rows), longest)
        starts = torch.tensor(self._lengths, device=device)
        cache.aim(0, starts, None, longest)
        last = torch.tensor([[row.response_ids[-1]] for row in self.rows], device=device)
        logits = self._forward(last, starts[:, None], longest, [row.policy for row in self.rows], cache)
        self._lengths = [length + 1 for length in self._lengths]
        self._draw(logits, self.rows)

    @torch.inference_mode()
    def drop_finished(self) -> None:
        """Takes the rows that are done out of the batch, and keeps what was computed for them."""
        for slot in reversed(range(len(self.rows))):
            row = self.rows[slot]
            if not row.done:
                continue
            if self._keeps and row.finish:
                assert self._cache is not None, "it is running"
                self._keep(self._cache, slot, row.policy, (*row.prompt_ids, *row.response_ids)[: self._lengths[slot]])
            last = len(self.rows) - 1
            if slot != last:
                assert self._cache is not None, "it is running"
                self._cache.move(last, slot, self._lengths[last])
                self.rows[slot], self._lengths[slot] = self.rows[last], self._lengths[last]
            self.rows.pop()
            self._lengths.pop()
        self._prefixes.trim()
        if not self.rows:
            self._cache = None

    def _keep(self, cache: SlotCache, slot: int, policy: str, ids: Ids) -> None:
        self._prefixes.put(policy, ids, lambda start: cache.pieces(slot, start, len(ids)))

    def _reading(self, policy: str, ids: Ids, row: Row | None = None) -> _Reading:
        # The last token of a prompt is always read: what comes after it is drawn from that.
        start, _ = self._prefixes.longest(policy, ids if row is None else ids[:-1])
        return _Reading(policy, ids, start, row)

    def _shared(self, rows: Sequence[Row]) -> Iterator[list[_Reading]]:
        """Yields the beginnings that several of these prompts share and that are not kept, shorter ones first."""
        prompts: dict[str, list[Ids]] = {}
        for row in rows:
            prompts.setdefault(row.policy, []).append(row.prompt_ids[:-1])
        levels = {policy: shared_prefixes(several, _WORTH) for policy, several in prompts.items()}
        for level in range(max(map(len, levels.values()), default=0)):
            readings = [
                self._reading(policy, ids)
                for policy, beginnings in levels.items()
                for ids in (beginnings[level] if level < len(beginnings) else ())
            ]
            if fresh := [reading for reading in readings if reading.rest >= _WORTH // 4]:
                yield fresh

    def _read_apart(self, readings: list[_Reading]) -> None:
        """Reads beginnings, only to keep them."""
        for bucket in _buckets(readings):
            columns = max(len(reading.ids) for reading in bucket)
            cache = SlotCache(self._layers, len(bucket), columns, self._is_over)
            self._fill(cache, 0, bucket)
            for slot, reading in enumerate(bucket):
                self._keep(cache, slot, reading.policy, reading.ids)

    def _read_running(self, readings: list[_Reading]) -> None:
        """Reads prompts into slots behind those that run, and draws their first tokens."""
        slots = len(self.rows) + len(readings)
        columns = max(
            len(reading.ids) + min(_MOST_AHEAD, reading.row.max_new_tokens if reading.row else 0)
            for reading in readings
        )
        if self._cache is None:
            self._cache = SlotCache(self._layers, slots, columns, self._is_over)
        self._cache.reserve(slots, columns)
        for bucket in _buckets(readings):
            first = len(self.rows)
            rows = [reading.row for reading in bucket if reading.row is not None]
            logits = self._fill(self._cache, first, bucket)
            self.rows += rows
            self._lengths += [len(reading.ids) for reading in bucket]
            self._draw(logits, rows)

    def _fill(self, cache: SlotCache, first: int, bucket: Sequence[_Reading]) -> torch.Tensor:
        """Writes the bucket's sequences into the slots from ``first``; returns the logits behind each.

        What is kept is copied; the rest is computed, its tokens aligned at their ends.
        """
        alike: dict[tuple[str, Ids], list[int]] = {}
        for row, reading in enumerate(bucket):
            alike.setdefault((reading.policy, reading.ids[: reading.start]), []).append(first + row)
        for (policy, ids), slots in alike.items():
            column = 0
            for segment, count in self._prefixes.longest(policy, ids)[1]:
                cache.put(slots, column, segment.pieces, count)
                column += count
        new = max(reading.rest for reading in bucket)
        ids = torch.zeros(len(bucket), new, dtype=torch.long)
        own = torch.zeros(len(bucket), new, dtype=torch.bool)
        for row, reading in enumerate(bucket):
            ids[row, new - reading.rest :] = torch.tensor(reading.ids[reading.start :])
            own[row, new - reading.rest :] = True
        device = self._module.device
        ids, own = ids.to(device), own.to(device)
        starts = torch.tensor([reading.start for reading in bucket], device=device)
        seen = max(len(reading.ids) for reading in bucket)
        cache.aim(first, starts, own, seen)
        # Padding looks like the token before the first new one: it sees something, and is written nowhere.
        positions = (starts[:, None] + own.long().cumsum(dim=1) - 1).clamp_(min=0)
        return self._forward(ids, positions, seen, [reading.policy for reading in bucket], cache)

    def _forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        seen: int,
        policies: Sequence[str],
        cache: SlotCache,
    ) -> torch.Tensor:
        """Logits float32 [rows, vocabulary] of the last column.

        ``ids`` and ``positions`` are int64 [rows, new]; a token sees the columns up to its own position.
        """
        module = self._module
        sees = torch.arange(seen, device=ids.device) <= positions[:, None, :, None]
        if module.config._attn_implementation == "eager":
            sees = torch.zeros(sees.shape, dtype=module.dtype, device=ids.device).masked_fill_(~sees, float("-inf"))
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": sees,
            "position_ids": positions,
            self._cache_argument: cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        with nullcontext() if self._adapters is None else self._adapters.writing(policies):
            output = module(**arguments)
        return output.logits[:, -1].float()

    def _draw(self, logits: torch.Tensor, rows: Sequence[Row]) -> None:
        """Draws a token for each row, appends it with its log-probability, marks the rows that end."""
        ids, logprobs = draw(logits, rows)
        if not bool(torch.isfinite(logprobs).all()):
            raise FloatingPointError("the model's output is not finite: its weights are broken")
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            if row.done:
                continue
            row.response_ids.append(token)
            row.logprobs.append(logprob)
            if row.constraint is not None:
                row.constraint.take(token)
            if token in self._model.eos_ids or self._reads_stop(row):
                row.finish = "stop"
            elif len(row.response_ids) >= row.max_new_tokens:
                row.finish = "length"

    def _reads_stop(self, row: Row) -> bool:
        if not row.stop:
            return False
        # Only what the newest token may have completed is looked at; every token but a few has a byte at least.
        window = max(len(stop.encode()) for stop in row.stop) + _SLACK
        text = self._model.decode(row.response_ids[-window:])
        return any(stop in text for stop in row.stop)


def _buckets(readings: Sequence[_Reading]) -> Iterator[list[_Reading]]:
    """Readings of like length together, so that little is padding."""
    bucket: list[_Reading] = []
    for reading in sorted(readings, key=lambda reading: -reading.rest):
        longest = bucket[0].rest if bucket else reading.rest
        if bucket and (longest - reading.rest > max(_WORTH, longest // 2) or longest * len(bucket) >= _MOST_READ):
            yield bucket
            bucket = []
        bucket.append(reading)
    if bucket:
        yield bucket
