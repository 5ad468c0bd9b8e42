"""Attention over a packed trie: every token attends to itself and its ancestors, not to other branches.

The tokens of a trie are laid out depth first (`lgov_core.transitions.tokens`). Two ways to attend, which give the
same:

- by segment: each node's queries against the keys and values of the nodes from the top down to it, through PyTorch's
  scaled dot product attention; on every device, without a mask as large as the pack squared;
- FlexAttention, on CUDA and only where `FLEX_VARIABLE` asks for it: one kernel over the whole pack with a block-sparse
  mask. A token ``k`` is seen by ``q`` if ``k`` is not after ``q`` and ``q`` is not after the last token under ``k``.

Both are called by transformers' own attention layers, through its `AttentionInterface`. Needs the extra ``train``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, Final

import torch
import torch.nn.functional as F

from lgov_core.errors import TrainError
from lgov_core.transitions.tokens import TokenNode

Tensor = torch.Tensor

#: The environment variable that asks for FlexAttention where it is set to 1.
FLEX_VARIABLE: Final = "LGOV_FLEX_ATTENTION"
#: The name under which transformers knows it.
IMPLEMENTATION = "lgov_trie"


class Segments:
    """How the tokens of a pack attend to one another. Immutable but for tensors that are made when first needed.

    ``ends`` (int, one for each of the pack's N tokens) is where the token's subtree ends: the number of the first
    token after it that is not below it. ``count`` is the number of nodes. ``calls`` counts the attention layers that have
    asked so far, over all passes.
    """

    def __init__(self, nodes: Sequence[TokenNode]) -> None:
        self.sizes = [len(node.ids) for node in nodes]
        self.paths: list[tuple[int, ...]] = []
        for number, node in enumerate(nodes):
            above = self.paths[node.parent] if node.parent >= 0 else ()
            self.paths.append((*above, number))
        self.ends = _ends(nodes, self.sizes)
        self.calls = 0
        self._masks: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}
        self._blocks: dict[tuple[int, torch.device], Any] = {}

    @property
    def count(self) -> int:
        """How many nodes the trie has."""
        return len(self.sizes)

    def mask(self, queries: int, keys: int, like: Tensor) -> Tensor | None:
        """Added to the scores of a segment: 0 or minus infinity, (queries, keys). None when it sees all."""
        if queries == 1:
            return None
        mask_key = (queries, keys, like.dtype, like.device)
        if mask_key not in self._masks:
            allowed = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril(keys - queries)
            self._masks[mask_key] = torch.zeros_like(allowed, dtype=like.dtype).masked_fill_(~allowed, float("-inf"))
        return self._masks[mask_key]

    def blocks(self, size: int, device: torch.device) -> Any:
        """FlexAttention's `BlockMask` of the pack, filled up to ``size`` tokens that see themselves only."""
        if (size, device) not in self._blocks:
            from torch.nn.attention.flex_attention import create_block_mask

            ends = [*self.ends, *range(len(self.ends) + 1, size + 1)]
            rule = flex_rule(torch.tensor(ends, device=device))
            self._blocks[size, device] = create_block_mask(rule, None, None, size, size, device=str(device))
        return self._blocks[size, device]


def flex_rule(ends: Tensor) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
    """The rule of `Segments.ends` as FlexAttention asks for it: batch, head, query's number, key's number."""

    def rule(_batch: Any, _head: Any, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    return rule


@contextlib.contextmanager
def attending(model: Any, segments: Segments) -> Generator[None]:
    """Within it the attention layers of ``model`` (a transformers model) attend as ``segments`` say, in this thread.

    The model's configuration is changed meanwhile; another thread that runs a model of the same configuration attends
    as before. Raises `TrainError` when not one attention layer asked: the model then did not compute what it should.
    """
    _register()
    config, before = model.config, model.config._attn_implementation
    token = _present.set(segments)
    calls = segments.calls
    config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        config._attn_implementation = before
        _present.reset(token)
    if segments.calls == calls:
        raise TrainError("no attention layer of this model accepts a custom mask", hint='set packing to "rows"')


def segment_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None) -> Tensor:
    """Attention by segment. ``query`` is (1, heads, N, width), ``key`` and ``value`` may have fewer heads.

    Returns (1, heads, N, width).
    """
    grouped = query.shape[1] != key.shape[1]
    # Split and joined, not sliced: the backward pass then writes each gradient once, not a tensor of zeros for each slice.
    queries, keys, values = (tensor.split(segments.sizes, dim=2) for tensor in (query, key, value))
    outputs: list[Tensor] = []
    for own, path in zip(queries, segments.paths, strict=True):
        if len(path) == 1:
            only = path[0]
            outputs.append(
                F.scaled_dot_product_attention(
                    own, keys[only], values[only], is_causal=True, scale=scale, enable_gqa=grouped
                )
            )
            continue
        seen, meant = torch.cat([keys[n] for n in path], dim=2), torch.cat([values[n] for n in path], dim=2)
        mask = segments.mask(own.shape[2], seen.shape[2], own)
        outputs.append(
            F.scaled_dot_product_attention(own, seen, meant, attn_mask=mask, scale=scale, enable_gqa=grouped)
        )
    return torch.cat(outputs, dim=2)


def pass_size(count: int, device: torch.device) -> int:
    """How many tokens a pack of ``count`` is filled up to: a multiple of 256 for FlexAttention, which is compiled by shape."""
    return -(-count // 256) * 256 if flex_available(device) else count


def flex_available(device: torch.device) -> bool:
    """True where FlexAttention was asked for (`FLEX_VARIABLE`) and can be compiled for ``device``: CUDA with Triton.

    Off unless asked for: compiled, it has not run on CUDA in this project.
    """
    requested = os.environ.get(FLEX_VARIABLE) == "1"
    return requested and device.type == "cuda" and importlib.util.find_spec("triton") is not None


@functools.cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _ends(nodes: Sequence[TokenNode], sizes: Sequence[int]) -> list[int]:
    below = list(sizes)  # tokens in a node's subtree; parents come before children
    for number in range(len(nodes) - 1, -1, -1):
        if (parent := nodes[number].parent) >= 0:
            below[parent] += below[number]
    ends: list[int] = []
    start = 0
    for size, total in zip(sizes, below, strict=True):
        ends += [start + total] * size
        start += size
    return ends


_present: ContextVar[Segments | None] = ContextVar("lgov_segments", default=None)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Tensor, None]:
    segments = _present.get()
    if segments is None:
        # Another thread has the same configuration: it gets what it would have got.
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
    odd = [name for name in ("sliding_window", "softcap", "s_aux", "position_bias") if more.get(name) is not None]
    if odd or dropout:
        what = "dropout in attention" if dropout else odd[0]
        raise TrainError(f"a trie cannot be attended to with {what}", hint='set packing to "rows"')
    segments.calls += 1
    if flex_available(query.device):
        grouped = query.shape[1] != key.shape[1]
        blocks = segments.blocks(query.shape[2], query.device)
        out = _compiled_flex()(query, key, value, block_mask=blocks, scale=scaling, enable_gqa=grouped)
    else:
        out = segment_attention(query, key, value, segments, scaling)
    return out.transpose(1, 2).contiguous(), None


def _mask(*args: Any, **more: Any) -> Any:
    if _present.get() is not None:
        return None
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **more)


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)
