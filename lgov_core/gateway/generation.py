"""The decode loop: prompts in, tokens with their log-probabilities out, many sequences at once.

Imports torch and transformers; import it only where they are needed. Nothing here is thread-safe: one thread decodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers import Cache

from lgov_core.gateway.kv_cache import check_cacheable, expanded, joined, new_cache, thinned
from lgov_core.models import LanguageModel

#: A shared beginning shorter than this is not worth a forward pass of its own.
_SHORTEST_PREFIX = 16
_MOST_PREFIXES = 8
_MOST_SEEN = 4096
#: A uniform number is kept this far below 1, so that the last token of the distribution is not overshot.
_ALMOST_ONE = 1.0 - 2.0**-40


@dataclass(slots=True, eq=False)
class Row:
    """One sequence on its way.

    ``uniforms`` (float64 [max_new_tokens], in [0, 1)) decides its draws, so that its tokens do not depend on what
    else is in the batch. ``finish`` is "" until it is stop or length. ``abandoned`` may be set by any thread: nobody
    waits for it any more.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_p: float
    uniforms: torch.Tensor
    stop: tuple[str, ...] = ()
    response_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish: str = ""
    abandoned: bool = False

    @property
    def done(self) -> bool:
        """Whether it needs no more tokens."""
        return self.abandoned or bool(self.finish)


def draw_uniforms(seed: int, count: int) -> torch.Tensor:
    """``count`` numbers in [0, 1), float64, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).clamp_(max=_ALMOST_ONE)


@dataclass(slots=True)
class Batch:
    """Sequences that are decoded together, aligned at their last column.

    ``mask`` is bool [rows, columns of the cache], False where a row has no token; ``positions`` int64 [rows] is where
    each row's next token stands in its own sequence; ``last_ids`` int64 [rows] is the newest token of each, not yet in
    the cache.
    """

    rows: list[Row]
    cache: Cache
    mask: torch.Tensor
    positions: torch.Tensor
    last_ids: torch.Tensor


class Decoder:
    """Runs one model. ``forget`` must be called whenever the weights changed."""

    def __init__(self, model: LanguageModel) -> None:
        check_cacheable(model.module.config)
        self._model = model
        self._module = model.module
        self._prefixes: OrderedDict[tuple[int, ...], Cache] = OrderedDict()
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()

    @property
    def _device(self) -> torch.device:
        return self._module.device

    def forget(self) -> None:
        """Drops everything computed with the present weights."""
        self._prefixes.clear()

    @torch.inference_mode()
    def begin(self, rows: Sequence[Row]) -> Batch:
        """Reads the prompts and draws the first token of each row."""
        if self._module.training:
            self._module.eval()
        batch: Batch | None = None
        for prefix, group in self._grouped(rows):
            part = self._read(prefix, group)
            batch = part if batch is None else self._join(batch, part)
        assert batch is not None, "begin needs at least one row"
        return batch

    @torch.inference_mode()
    def step(self, batch: Batch) -> None:
        """Draws one more token for every row. Rows that are done are carried along until `thin` drops them."""
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(batch.rows), 1)], dim=1)
        logits = self._forward(batch.last_ids[:, None], batch.mask, batch.positions[:, None], batch.cache)
        batch.positions = batch.positions + 1
        batch.last_ids = self._draw(logits, batch.rows)

    @torch.inference_mode()
    def thin(self, batch: Batch, *, force: bool = False) -> Batch | None:
        """The batch without its finished rows: when a quarter is finished (copying costs), or ``force``."""
        alive = [place for place, row in enumerate(batch.rows) if not row.done]
        finished = len(batch.rows) - len(alive)
        if not alive:
            return None
        if not finished or (not force and finished * 4 < len(batch.rows)):
            return batch
        keep = torch.tensor(alive, device=self._device)
        mask = batch.mask[keep]
        # Columns in which no row has a token any more would otherwise pile up as rows come and go.
        columns = mask.any(dim=0).nonzero()[:, 0]
        return Batch(
            [batch.rows[place] for place in alive],
            thinned(batch.cache, keep, columns),
            mask[:, columns],
            batch.positions[keep],
            batch.last_ids[keep],
        )

    @torch.inference_mode()
    def join(self, batch: Batch | None, more: Batch) -> Batch | None:
        """Both, without their finished rows."""
        parts = [part for old in (batch, more) if old is not None and (part := self.thin(old, force=True)) is not None]
        return self._join(*parts) if len(parts) == 2 else (parts[0] if parts else None)

    @staticmethod
    def _join(left: Batch, right: Batch) -> Batch:
        columns = max(left.mask.shape[1], right.mask.shape[1])
        masks = [
            torch.nn.functional.pad(part.mask, (columns - part.mask.shape[1], 0), value=False) for part in (left, right)
        ]
        return Batch(
            [*left.rows, *right.rows],
            joined(left.cache, right.cache),
            torch.cat(masks),
            torch.cat([left.positions, right.positions]),
            torch.cat([left.last_ids, right.last_ids]),
        )

    def _grouped(self, rows: Sequence[Row]) -> list[tuple[tuple[int, ...], list[Row]]]:
        """Rows by the first turn of their prompt, where several prompts begin with it: it is read only once.

        Rows that share nothing are one group with an empty beginning.
        """
        by_first_turn: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            by_first_turn.setdefault(self._first_turn(row.prompt_ids), []).append(row)
        groups: list[tuple[tuple[int, ...], list[Row]]] = []
        alone: list[Row] = []
        for first_turn, group in by_first_turn.items():
            shared = bool(first_turn) and (len(group) > 1 or first_turn in self._seen)
            if first_turn:
                self._seen[first_turn] = None
                self._seen.move_to_end(first_turn)
                if len(self._seen) > _MOST_SEEN:
                    self._seen.popitem(last=False)
            if shared:
                groups.append((first_turn, group))
            else:
                alone += group
        if alone:
            groups.append(((), alone))
        return groups

    def _first_turn(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        try:
            length = prompt_ids.index(self._model.end_id) + 1
        except ValueError:
            return ()
        return prompt_ids[:length] if _SHORTEST_PREFIX <= length < len(prompt_ids) else ()

    def _prefix_cache(self, prefix: tuple[int, ...]) -> Cache:
        found = self._prefixes.get(prefix)
        if found is None:
            found = new_cache()
            ids = torch.tensor([prefix], device=self._device)
            positions = torch.arange(len(prefix), device=self._device)[None]
            self._forward(ids, torch.ones_like(ids, dtype=torch.bool), positions, found)
            self._prefixes[prefix] = found
            if len(self._prefixes) > _MOST_PREFIXES:
                self._prefixes.popitem(last=False)
        self._prefixes.move_to_end(prefix)
        return found

    def _read(self, prefix: tuple[int, ...], rows: list[Row]) -> Batch:
        """Reads the prompts of rows that begin with ``prefix``, left-padded, and draws the first tokens."""
        rests = [row.prompt_ids[len(prefix) :] for row in rows]
        columns = max(map(len, rests))
        ids = torch.zeros(len(rows), columns, dtype=torch.long)
        own = torch.zeros(len(rows), columns, dtype=torch.bool)
        for place, rest in enumerate(rests):
            ids[place, columns - len(rest) :] = torch.tensor(rest)
            own[place, columns - len(rest) :] = True
        positions = len(prefix) + (own.long().cumsum(dim=1) - 1).clamp_(min=0)
        mask = torch.cat([torch.ones(len(rows), len(prefix), dtype=torch.bool), own], dim=1)
        cache = expanded(self._prefix_cache(prefix), len(rows)) if prefix else new_cache()
        device = self._device
        ids, mask, positions = ids.to(device), mask.to(device), positions.to(device)
        logits = self._forward(ids, mask, positions, cache)
        return Batch(rows, cache, mask, positions[:, -1] + 1, self._draw(logits, rows))

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Logits float32 [rows, vocabulary] of the last column; the cache grows by the columns of ``ids``."""
        module = cast("Any", self._module)
        output = module(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def _draw(self, logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Draws a token for each row, appends it with its log-probability, marks the rows that end. Int64 [rows]."""
        ids, logprobs = draw(logits, rows)
        if not bool(torch.isfinite(logprobs).all()):
            raise FloatingPointError("the model's output is not finite: its weights are broken")
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            if row.done:
                continue
            row.response_ids.append(token)
            row.logprobs.append(logprob)
            if token in self._model.eos_ids or self._reads_stop(row):
                row.finish = "stop"
            elif len(row.response_ids) >= row.max_new_tokens:
                row.finish = "length"
        return ids

    def _reads_stop(self, row: Row) -> bool:
        if not row.stop:
            return False
        text = self._model.decode(row.response_ids)
        return any(stop in text for stop in row.stop)


def draw(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row: ids int64 [rows] and log-probabilities float32 [rows] at the row's temperature.

    ``logits`` is float32 [rows, vocabulary]. Temperature 0 takes the likeliest token and reports its log-probability at
    temperature 1. ``top_p`` narrows the choice; the log-probability stays that of the whole distribution.
    """
    device = logits.device
    warmth = torch.tensor([row.temperature or 1.0 for row in rows], device=device)
    logprobs = torch.log_softmax(logits / warmth[:, None], dim=-1)
    weights = logprobs.double().exp_()
    if any(row.top_p < 1.0 for row in rows):
        _narrow(weights, torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device))
    steps = [min(len(row.response_ids), len(row.uniforms) - 1) for row in rows]
    uniforms = torch.stack([row.uniforms[step] for row, step in zip(rows, steps, strict=True)]).to(device)
    total = weights.cumsum_(dim=-1)
    ids = torch.searchsorted(total, (uniforms * total[:, -1])[:, None], right=True)[:, 0]
    ids.clamp_(max=logits.shape[-1] - 1)
    greedy = torch.tensor([row.temperature == 0.0 for row in rows], device=device)
    ids = torch.where(greedy, logprobs.argmax(dim=-1), ids)
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]


def _narrow(weights: torch.Tensor, top_p: torch.Tensor) -> None:
    """Sets to zero what is outside the smallest set of tokens that holds ``top_p`` of the weight (float64 [rows])."""
    ordered, places = weights.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    # A row that is not narrowed keeps everything, whatever rounding makes of its sum.
    outside = (before >= top_p[:, None]) & (top_p < 1.0)[:, None]
    weights.scatter_(-1, places, ordered.masked_fill(outside, 0.0))
