"""A causal language model together with everything needed to talk to it in messages and tools."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lgov_core.errors import EndpointError, ModelError
from lgov_core.models.chat_template import REPLY_STARTS, PromptText
from lgov_core.models.tool_formats import ToolFormat, tool_format

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

#: The file beside config.json that remembers what transformers has no place for.
DETAILS_FILE = "lgov_model.json"


@contextmanager
def no_transformers_bars() -> Generator[None]:
    """Hides the progress bars of transformers, in the whole process."""
    from transformers.utils import logging

    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()


@dataclass(unsafe_hash=True, slots=True)
class LanguageModel:
    """A causal language model, its tokenizer, and how tool calls are written in its text.

    ``module`` is a transformers causal LM (torch). ``tokenizer`` has a chat template. ``tool_format`` is a name in
    `lgov_core.models.tool_formats.TOOL_FORMATS`. ``eos_ids`` are the token ids that end a reply. Everything here but
    ``module`` may be used from several threads at once. Raises `ModelError` when there is no chat template.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str
    tool_format: str
    eos_ids: frozenset[int]
    text: PromptText = field(init=False, repr=False, compare=False)
    format: ToolFormat = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"model {self.name!r} has no chat template", hint="use an instruction-tuned model, not a base model"
            )
        if self.tokenizer.eos_token_id is None:
            raise ModelError(f"the tokenizer of model {self.name!r} has no end-of-turn token (eos_token)")
        self.text = PromptText(self.tokenizer)
        self.format = self._fitting_format()

    @property
    def end_id(self) -> int:
        """The token id that ends a turn."""
        return int(cast("int", self.tokenizer.eos_token_id))

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and reply may have together."""
        return int(self.module.config.max_position_embeddings)

    def render_text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt as text, with the head of the assistant's next turn; ``self.text.encode`` makes tokens of it.

        Messages and tools are in OpenAI form. Raises `EndpointError` (400) for a conversation that the model's template
        refuses or that is not text.
        """
        return self._apply_template(self.format.render_messages(messages, tools))

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids of the prompt (see `render_text`)."""
        return self.text.encode(self.render_text(messages, tools))

    def encode_reply(self, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids with which the model would have written this assistant message, end token included.

        ``render(history)`` followed by this is how ``render([*history, message, ...])`` begins.
        """
        text = self.format.render_messages([message], tools)[-1]["content"]
        return [*self.text.encode(self.text.protect(text)), self.end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included. Bytes that are not UTF-8 become U+FFFD."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return cast("str", text)

    def save(self, folder: Path | str) -> None:
        """Writes a transformers folder that `load_model` reads. Raises `ModelError` when that is not possible."""
        try:
            with no_transformers_bars():
                self.module.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            details = {"name": self.name, "tool_format": self.tool_format}
            Path(folder, DETAILS_FILE).write_text(json.dumps(details) + "\n", encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot write model {self.name!r} to {folder}: {error}") from error

    def _apply_template(self, plain: Sequence[Mapping[str, str]]) -> str:
        import jinja2

        protected = [
            {"role": role, "content": (REPLY_STARTS if role == "assistant" else "") + self.text.protect(content)}
            for role, content in ((message["role"], message["content"]) for message in plain)
        ]
        try:
            rendered = self.tokenizer.apply_chat_template(protected, tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise EndpointError(
                f"the chat template of model {self.name!r} refuses the conversation: {error}"
            ) from error
        return cast("str", rendered)

    def _fitting_format(self) -> ToolFormat:
        """The tool format, with results under the role ``user`` when the template has no role for them."""
        chosen = tool_format(self.tool_format)
        probe = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"},
            {"role": chosen.tool_role, "content": "the-result"},
        ]
        try:
            knows_role = "the-result" in self._apply_template(probe)
        except EndpointError:
            knows_role = False
        return chosen if knows_role else replace(chosen, tool_role="user")
