"""Layouts: whatever order rows are run in, every trained token has the log-probability of its own sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
transformers = pytest.importorskip("transformers", reason='needs the extra "train"')

from lgov_core.train.layout.layouts import Layout, PaddedRows  # noqa: E402
from lgov_core.train.layout.rows import TrainRow, head_scores  # noqa: E402


def model() -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).double().eval()


def row(ids: list[int], mask: list[int], temperature: float = 1.0) -> TrainRow:
    zeros = (0.0,) * len(ids)
    return TrainRow(tuple(ids), tuple(mask), zeros, zeros, zeros, temperature)


ROWS = [
    row([1, 2, 3, 4], [0, 0, 1, 1]),
    row([5, 6, 7, 8, 9, 10, 11], [0, 1, 0, 0, 1, 0, 1], 0.5),
    row([1, 2, 9], [0, 0, 1], 2.0),
]


def expected(module: Any, one: TrainRow) -> list[float]:
    """One row at a time, without padding, through the model's own forward."""
    logits = module(torch.tensor([one.ids])).logits[0] / one.temperature
    logprobs = logits.log_softmax(-1)
    return [float(logprobs[at - 1, token]) for at, token in enumerate(one.ids) if one.mask[at]]


def test_padded_rows_give_each_rows_own_logprobs_row_after_row() -> None:
    module, layout = model(), PaddedRows()
    found = layout.logprobs(module, ROWS)
    assert found.dtype == torch.float64, "a model of double precision keeps it"
    assert found.tolist() == pytest.approx([value for one in ROWS for value in expected(module, one)], abs=1e-6)
    assert layout.states(module, ROWS).shape == (6, 16)
    again = head_scores(module, layout.states(module, ROWS), ROWS)[0]
    assert torch.equal(found, again)


def test_entropy_is_that_of_the_whole_distribution() -> None:
    module, layout = model(), PaddedRows()
    one = ROWS[1]
    _, entropy = head_scores(module, layout.states(module, [one]), [one], entropy=True)
    logprobs = (module(torch.tensor([one.ids])).logits[0] / one.temperature).log_softmax(-1)
    whole = -(logprobs.exp() * logprobs).sum(-1)
    assert entropy is not None
    assert entropy.tolist() == pytest.approx([float(whole[at - 1]) for at in (1, 4, 6)], abs=1e-6)


def test_batches_hold_every_row_once_and_keep_to_the_bound() -> None:
    layout: Layout = PaddedRows()
    rows = [replace(ROWS[0], rollout_id=str(number)) for number in range(5)] + [ROWS[1]]
    batches = layout.batches(rows, 8)
    assert sorted(one.rollout_id for batch in batches for one in batch) == sorted(one.rollout_id for one in rows)
    assert all(len(batch) * max(len(one.ids) for one in batch) <= 8 for batch in batches)
    assert layout.batches(rows, 1) == [[one] for one in rows], "a row that is too long is run alone"
