"""The trie of tokens: losses and gradients are those of one row per call, on random tries and on those agents make."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason='needs the extra "train"')
transformers = pytest.importorskip("transformers", reason='needs the extra "train"')
peft = pytest.importorskip("peft", reason='needs the extra "train"')

from torch.nn.attention.flex_attention import create_mask, flex_attention  # noqa: E402

from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.train.algorithms.algorithms import UpdateConfig  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.layout import layouts as tree_layout_module  # noqa: E402
from lgov_core.train.layout import segment_attention as segment_attention_module  # noqa: E402
from lgov_core.train.layout.layouts import (  # noqa: E402
    CheaperLayout,
    Layout,
    PaddedRows,
    TokenTrie,
    layout_for,
    pack_rows,
    why_not_packed,
)
from lgov_core.train.layout.rows import RowCall, TrainRow  # noqa: E402
from lgov_core.train.layout.segment_attention import Segments, attending, flex_rule, segment_attention  # noqa: E402
from lgov_core.transitions.tokens import make_nodes  # noqa: E402
from tests.double_precision import double  # noqa: E402

VOCABULARY = 13
EXACT = settings(max_examples=15, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def llama(seed: int = 0, **changes: Any) -> Any:
    """Grouped heads, tied embeddings: SmolLM2's make at a small size."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 18,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 4,
        "tie_word_embeddings": True,
        "initializer_range": 0.5,  # so that attention is not nearly the same whatever is seen
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})).eval()


@functools.cache
def subject(kind: str) -> Any:
    if kind == "llama":
        return double(llama(num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False))
    if kind == "grouped heads":
        return double(llama())
    if kind == "float32":
        return llama()
    if kind == "qwen2":
        config = transformers.Qwen2Config(
            **{**llama().config.to_dict(), "model_type": "qwen2", "use_sliding_window": False}
        )
        torch.manual_seed(0)
        return double(transformers.Qwen2ForCausalLM(config)).eval()
    settings = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    module = double(peft.get_peft_model(llama(), settings))
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "lora_B" in name:  # 0 at the start: the other factor would have no gradient
                value.copy_(torch.linspace(-0.5, 0.5, value.numel()).view_as(value))
    return module


@st.composite
def row(draw: st.DrawFn) -> TrainRow:
    ids = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    mask = [0, *(draw(st.integers(0, 1)) for _ in ids[1:])]
    numbers = st.floats(-2, 2, width=32)
    advantages = [draw(numbers) if kept else 0.0 for kept in mask]
    weights = [0.125 * kept for kept in mask]
    temperature = draw(st.sampled_from([1.0, 0.7]))
    return TrainRow(tuple(ids), tuple(mask), (0.0,) * len(ids), tuple(advantages), tuple(weights), temperature)


#: Tokens are one of three, so that rows have much in common: equal rows, and rows that begin others, among them.
rows_of_a_group = st.lists(row(), min_size=1, max_size=9)


def gradients(module: Any, layout: Layout, rows: list[TrainRow], tokens: int) -> tuple[float, list[Any]]:
    """A clipped policy loss whose terms differ from token to token, and its gradient."""
    module.zero_grad()
    total = 0.0
    for batch in layout.batches(rows, tokens):
        logprobs = layout.logprobs(module, batch)

        def column(name: str, batch: list[TrainRow] = batch, like: Any = logprobs) -> Any:
            values = [v for one in batch for v, kept in zip(getattr(one, name), one.mask, strict=True) if kept]
            return torch.tensor(values, dtype=like.dtype)

        ratio = torch.exp(logprobs - logprobs.detach() + 0.1)
        advantages = column("advantages")
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.05) * advantages)
        loss = -(surrogate * column("weights")).sum() + (0.01 * logprobs.square() * column("weights")).sum()
        loss.backward()
        total += float(loss.detach())
    return total, [p.grad.clone() for p in module.parameters() if p.grad is not None]


def assert_equal(module: Any, rows: list[TrainRow], tokens: int, relative: float) -> None:
    # One call to a row, one row to a pass: no padding, nothing shared.
    loss, expected = gradients(module, PaddedRows(), rows, 1)
    packed, found = gradients(module, TokenTrie(), rows, tokens)
    assert packed == pytest.approx(loss, rel=relative, abs=relative)
    assert len(found) == len(expected)
    off = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True)) ** 0.5
    size = sum(float(b.square().sum()) for b in expected) ** 0.5
    assert off <= relative * size + relative * 1e-3


@pytest.mark.parametrize("kind", ["llama", "grouped heads", "lora", "qwen2"])
@EXACT
@given(rows=rows_of_a_group, tokens=st.sampled_from([6, 20, 1000]))
def test_gradients_are_those_of_one_row_per_call_in_double_precision(
    kind: str, rows: list[TrainRow], tokens: int
) -> None:
    assert_equal(subject(kind), rows, tokens, 1e-9)


@EXACT
@given(rows=rows_of_a_group, tokens=st.sampled_from([6, 20, 1000]))
def test_gradients_are_those_of_one_row_per_call_in_single_precision(rows: list[TrainRow], tokens: int) -> None:
    assert_equal(subject("float32"), rows, tokens, 1e-5)


@EXACT
@given(rows=rows_of_a_group, tokens=st.integers(1, 40))
def test_every_row_is_in_one_batch_and_batches_keep_to_their_tokens(rows: list[TrainRow], tokens: int) -> None:
    layout = TokenTrie()
    batches = layout.batches(rows, tokens)
    assert sorted(map(id, rows)) == sorted(id(one) for batch in batches for one in batch)
    assert all(len(pack_rows(batch).ids) <= tokens or len(batch) == 1 for batch in batches)
    assert layout.work(batches) == sum(len(pack_rows(batch).ids) for batch in batches)
    prefixes = {one.ids[:end] for one in rows for end in range(1, len(one.ids) + 1)}
    everything = pack_rows(rows)
    assert len(everything.ids) == len(prefixes), "every distinct prefix stands there once"
    assert len(layout.batches(rows, len(prefixes))) == 1


def test_batches_are_cut_where_least_is_run_twice() -> None:
    none = (0.0,) * 12
    rows = [
        TrainRow((*shared, end, end), (0,) * 11 + (1,), none, none, none, 1.0)
        for shared in ((1,) * 10, (2,) * 10)
        for end in (1, 2, 3, 4)
    ]
    layout = TokenTrie()
    batches = layout.batches(rows, 30)  # filled up, the first would take a row of the second group, and its ten tokens
    assert [{one.ids[0] for one in batch} for batch in batches] == [{1}, {2}]
    assert layout.work(batches) == 2 * (10 + 4 * 2)


def visible_tokens(segments: Segments) -> Any:
    """Which token sees which: bool of shape (N, N), true where the token of the row sees the token of the column."""
    numbers = torch.arange(len(segments.ends))
    return flex_rule(torch.tensor(segments.ends))(None, None, numbers[:, None], numbers[None, :])


@EXACT
@given(rows=rows_of_a_group)
def test_a_token_sees_its_own_prefix_and_nothing_else(rows: list[TrainRow]) -> None:
    pack = pack_rows(rows)
    visible = visible_tokens(pack.segments)
    prefixes: list[tuple[int, ...]] = []
    for number, (token, position) in enumerate(zip(pack.ids, pack.positions, strict=True)):
        seen = visible[number].nonzero().flatten().tolist()
        assert [pack.positions[place] for place in seen] == list(range(position + 1))
        prefixes.append(tuple(pack.ids[place] for place in seen))
        assert prefixes[-1][-1] == token
    wanted = [one.ids[:at] for one in rows for at, kept in enumerate(one.mask) if kept]
    assert [prefixes[source] for source in pack.sources] == wanted
    # FlexAttention's mask, which runs on CUDA, says the same; so does its kernel, here without compilation.
    size = len(pack.ids)
    mask = create_mask(flex_rule(torch.tensor(pack.segments.ends)), None, None, size, size, device="cpu")
    assert torch.equal(mask[0, 0], visible)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_and_attention_by_segment_give_the_same() -> None:
    nodes = make_nodes([(1, 2, 3, 4), (1, 2, 5), (1, 2, 3, 6, 7), (8, 9)])
    segments = Segments(nodes)
    size = len(segments.ends)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, size, 4, dtype=torch.float64) for heads in (6, 2, 2))
    by_segment = segment_attention(query, key, value, segments, 0.3)
    blocks = segments.blocks(size, torch.device("cpu"))
    by_flex = flex_attention(query, key, value, block_mask=blocks, scale=0.3, enable_gqa=True)
    assert torch.allclose(by_segment, by_flex, atol=1e-12)
    scores = (query @ key.repeat_interleave(3, 1).transpose(2, 3) * 0.3).masked_fill(
        ~visible_tokens(segments), -torch.inf
    )
    assert torch.allclose(by_segment, scores.softmax(-1) @ value.repeat_interleave(3, 1), atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_model_run_with_flex_attention_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # The path that CUDA takes, on CPU without compilation, which has no backward pass here.
    module, rows = llama(max_position_embeddings=256), agents()
    with torch.no_grad():
        expected = PaddedRows().logprobs(module, rows)
        monkeypatch.setattr(segment_attention_module, "flex_available", lambda device: True)
        monkeypatch.setattr(segment_attention_module, "_compiled_flex", lambda: flex_attention)
        layout = TokenTrie()
        found = layout.logprobs(module, rows)
        monkeypatch.setattr(segment_attention_module, "_compiled_flex", lambda: pytest.fail("asked"))
        with pytest.raises(pytest.fail.Exception, match="asked"):
            layout.logprobs(module, rows)
    assert torch.allclose(found, expected, atol=1e-5)
    assert segment_attention_module.pass_size(len(layout.pack(rows).ids), torch.device("cpu")) == 256


# --------------------------------------------------------------------------------------------- within the update


def agents(calls: int = 6, shared: int = 80) -> list[TrainRow]:
    """Calls that rebuild their context: a long prompt in common, an end of their own."""
    made: list[TrainRow] = []
    for number in range(calls):
        ids = tuple(n % 11 + 1 for n in range(shared)) + tuple((n * 5 + number) % 11 + 1 for n in range(8))
        mask = (0,) * (len(ids) - 4) + (1,) * 4
        none = tuple(0.0 for _ in ids)
        credit = tuple((number - 2.0) * kept for kept in mask)
        made.append(TrainRow(ids, mask, none, credit, tuple(0.1 * kept for kept in mask), 1.0))
    return made


def test_an_update_gives_the_same_weights_by_either_layout_and_says_what_was_saved() -> None:
    states: dict[str, Any] = {}
    for packing in ("rows", "tree", "auto"):
        module = llama(max_position_embeddings=256).double()
        config = UpdateConfig(packing=packing, learning_rate=1e-3)
        metrics = PolicyUpdate(module, config, reference=llama(seed=1).double()).update(agents())
        states[packing] = module.state_dict()
        if packing == "rows":
            assert (metrics.tokens_run, metrics.tokens_saved) == (5 * 88, 0), "one row has no advantage"
        else:
            assert metrics.tokens_run == len(pack_rows([one for one in agents() if one.informative]).ids) < 130
            assert metrics.tokens_saved == 5 * 88 - metrics.tokens_run
    for name, value in states["rows"].items():
        assert torch.allclose(value, states["tree"][name], rtol=1e-6, atol=1e-9)
        assert torch.equal(states["auto"][name], states["tree"][name])


def test_what_a_chain_of_calls_saves_is_counted_against_each_call_by_itself() -> None:
    one = agents(1)[0]
    calls = (RowCall(84, 86), RowCall(86, 88))
    chained = TrainRow(one.ids, one.mask, one.logprobs, one.advantages, one.weights, 1.0, calls)
    assert chained.called == 86 + 88
    metrics = PolicyUpdate(llama(), UpdateConfig(kl=0, packing="rows")).update([chained])
    assert (metrics.tokens_run, metrics.tokens_saved) == (88, 86)


def test_the_trie_is_chosen_where_it_pays() -> None:
    module = llama()
    layout = CheaperLayout(module)
    much, little = agents(shared=80), agents(shared=8)
    (together,) = layout.batches(much, 2048)
    assert isinstance(layout.layout_of(together), TokenTrie)
    assert layout.batches(little, 60) == PaddedRows().batches(little, 60)
    assert isinstance(layout.layout_of(little), PaddedRows), "eight tokens a call are not worth a pass of many pieces"
    assert isinstance(layout.layout_of(much[:1]), PaddedRows)
    # What was decided for some rows says nothing of others that are run in turn with them.
    assert layout.work([together, little]) == len(pack_rows(together).ids) + sum(len(one.ids) for one in little)
    assert isinstance(layout.layout_of(together), TokenTrie)


def test_packs_are_kept_while_they_are_used_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_layout_module, "_MAX_PACKS", 2)
    layout, rows = TokenTrie(), agents()
    first = layout.pack(rows[:2])
    assert layout.pack(rows[:2]) is first
    layout.pack(rows[2:4])
    layout.pack(rows[4:])
    assert layout.pack(rows[:2]) is not first
    assert layout.pack(list(rows[4:])) is layout.pack(rows[4:])


def test_models_that_cannot_be_packed_are_run_row_by_row() -> None:
    sliding = transformers.MistralForCausalLM(
        transformers.MistralConfig(**{**llama().config.to_dict(), "model_type": "mistral", "sliding_window": 4})
    )
    recomputing = llama()
    for layer in recomputing.model.layers:
        layer.gradient_checkpointing = True
    dropping = llama(attention_dropout=0.5).train()
    scores = torch.nn.Linear(2, 2)
    for module in (sliding, recomputing, dropping, scores):
        assert why_not_packed(module)
        layout = layout_for("auto", module)
        batches = layout.batches(agents(), 2048)
        assert layout.work(batches) == 6 * 88
        with pytest.raises(TrainError, match="trie"):
            layout_for("tree", module)
    assert why_not_packed(llama()) is None
    with pytest.raises(TrainError, match="packing must be one of auto, rows, tree"):
        UpdateConfig(packing="heap")  # type: ignore[arg-type]


class Deaf(torch.nn.Module):
    """Attends with a kernel of its own: whoever tells it what to see is not heard."""

    def __init__(self) -> None:
        super().__init__()
        self.llama = llama()
        self.config = llama().config

    def get_decoder(self) -> Any:
        return self

    def forward(self, **inputs: Any) -> Any:
        inputs.pop("position_ids", None)
        return self.llama.model(**inputs)


def test_a_model_that_does_not_ask_what_to_attend_to_is_found_out() -> None:
    deaf = Deaf()
    with pytest.raises(TrainError, match="no attention layer"), attending(deaf, pack_rows(agents()).segments):
        deaf(input_ids=torch.tensor([[1, 2]]))
    whole = llama()
    whole.model = deaf
    assert "no attention layer" in str(why_not_packed(whole))


def test_another_thread_with_the_same_configuration_attends_as_before() -> None:
    module = llama()
    ids = torch.tensor([[1, 2, 3, 4]])
    before = module.config._attn_implementation
    expected = module(ids).logits
    found: list[Any] = []
    with attending(module, pack_rows(agents()).segments):
        thread = threading.Thread(target=lambda: found.append(module(ids).logits))
        thread.start()
        thread.join()
        TokenTrie().logprobs(module, agents())
        module.model(input_ids=torch.tensor([pack_rows(agents()).ids]), use_cache=False)
    assert torch.equal(found[0], expected)
    assert module.config._attn_implementation == before
    with pytest.raises(KeyError), attending(module, pack_rows(agents()).segments):
        raise KeyError
    assert module.config._attn_implementation == before
    assert torch.equal(module(ids).logits, expected)
