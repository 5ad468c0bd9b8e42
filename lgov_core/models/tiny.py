"""A transformer of about a million parameters with a tokenizer trained on a given corpus."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.files import atomic_folder
from lgov_core.errors import ModelError
from lgov_core.models.language_model import END, PAD, ROLES, TURN_TEMPLATE, LanguageModel, models_folder, role_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: The first tokens of the vocabulary, in this order.
_CONTROL = [PAD, END, *map(role_token, ROLES)]
_PAD_ID, _END_ID = _CONTROL.index(PAD), _CONTROL.index(END)

TINY: Final = "tiny"
#: What the tokenizer of `make_tiny` has read: everyday words, numbers, and the forms of tool calls.
_CORPUS: Final = (
    "You are a helpful assistant. Answer in one short sentence. Use the tools when you need them.",
    "How many orders are there? What is the total price of all items? Which customers live in the city?",
    "The answer is 42. There are 17 rows in the table. Yes. No. I do not know. It is not allowed.",
    "What is 3 + 4? What is 12 - 5? Write a number. Write a word. Say hello. Hello! Thank you, goodbye.",
    "Tools: run_sql(query), search(text), read_file(path), write_file(path, text), send(to, text), calculate(expression)",
    "@run_sql SELECT count(*) FROM orders WHERE price > 10 ORDER BY name LIMIT 5",
    '@search {"text": "weather in Paris", "limit": 3}',
    "DENIED by policy: it was not run; do not repeat it. Error: there is no such file.",
)


def make_tiny(cache: Path | None = None) -> Path:
    """The folder of the model named ``tiny``, which is made there (see `models_folder`) when there is none.

    Its weights are random, the same everywhere; a conversation may have 2,048 tokens. Raises `ModelError`.
    """
    folder = models_folder(cache) / TINY
    try:
        if not (folder / "config.json").is_file():
            with atomic_folder(folder) as temporary:
                build_tiny(_CORPUS, seed=0, max_positions=2048).save(temporary)
    except OSError as error:
        raise ModelError(
            f"the tiny model cannot be kept in {folder}: {error}", hint="set LGOV_CACHE to a folder you may write to"
        ) from error
    return folder


@dataclass(frozen=True, slots=True)
class TinySizes:
    """The sizes of a model that `build_tiny` makes, about a million weights by default. Impossible ones are a `ModelError`.

    ``vocab_size`` is the most tokens there may be (at least 262: every byte and the control tokens), ``max_positions`` the
    most of a conversation.
    """

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    intermediate: int = 384
    max_positions: int = 512
    vocab_size: int = 512

    def __post_init__(self) -> None:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ModelError(f"hidden size {self.hidden} does not divide into {self.heads} heads of even size")


def build_tiny(corpus: Iterable[str], *, seed: int, deviation: float | None = None, **sizes: int) -> LanguageModel:
    """A Llama with random weights (fp32, cpu) and a byte-level BPE tokenizer trained on ``corpus``.

    ``sizes`` are those of `TinySizes` by name. Digits are tokens of their own, so that a number is copied digit by digit;
    every text survives encoding and decoding. The same corpus and seed give the same model. ``deviation`` is that of all
    initial weights; by default it is chosen for each layer, which needs fewer steps of training. torch's global random state
    is unchanged. Raises `ModelError` for impossible sizes, `TypeError` for one that there is not.
    """
    size = TinySizes(**sizes)
    tokenizer = train_tokenizer(corpus, vocab_size=size.vocab_size, max_positions=size.max_positions)

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_END_ID,
        pad_token_id=_PAD_ID,
    )
    if deviation is not None:
        config.initializer_range = deviation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = LlamaForCausalLM(config).eval()
        if deviation is None:
            _spread(module, seed)
    return LanguageModel(module, tokenizer, TINY, "compact", frozenset({_END_ID}))


def _spread(module: Any, seed: int) -> None:
    """Draws the weights with deviation 1 / √(inputs), smaller where a layer adds to what there is.

    With the usual 0.02, attention in a model this narrow stays uniform for hundreds of steps.
    """
    import torch

    chance = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * module.config.num_hidden_layers)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() == 2:
                added = name.endswith(("o_proj.weight", "down_proj.weight"))
                deviation = 0.05 if "embed" in name else weight.shape[1] ** -0.5 / (depth if added else 1.0)
                weight.normal_(0.0, deviation, generator=chance)


def train_tokenizer(corpus: Iterable[str], *, vocab_size: int, max_positions: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the control tokens and chat template of `TURN_TEMPLATE`."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise ModelError(f"models need {error.name}", hint="pip install 'lgov[train]'") from error

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(_CONTROL)
    if vocab_size < least:
        raise ModelError(f"a vocabulary of {vocab_size} tokens is too small", hint=f"at least {least} are needed")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=_CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[role_token(role) for role in ROLES],
        chat_template=TURN_TEMPLATE,
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
