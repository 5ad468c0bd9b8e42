"""A causal language model together with everything needed to talk to it in messages and tools.

A conversation becomes the text of a prompt, and that text the prompt's tokens. Under `TURN_TEMPLATE` (for models made here)
and `CHATML_TEMPLATE` (for SmolLM2) a later prompt begins with exactly the earlier prompt and reply, end token included, so
that the calls of a rollout extend one another. Control tokens count only where the template wrote them (`PromptText`): a tool
result that contains the text of an end-of-turn token stays text and cannot forge a turn. Tags that are one token
(``<tool_call>``, ``<think>``) are tokens in what the model and lgov write, and text in what users and tools write, so that a
prompt is the one of transformers' ``apply_chat_template``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lgov_core.errors import EndpointError, ModelError
from lgov_core.models.tool_formats import Spelling, ToolFormat, tool_format

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def models_folder(cache: Path | None = None) -> Path:
    """The folder of models: under ``cache``, else ``$LGOV_CACHE``, else the user's cache folder."""
    return (cache or _cache_from_environment()) / "models"


def _cache_from_environment() -> Path:
    if folder := os.environ.get("LGOV_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lgov"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lgov"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lgov"


ROLES = ("system", "user", "assistant", "tool")
END = "<|end|>"
PAD = "<|pad|>"

# Private-use characters around a number: the stand-in for a control token's text, or for a token boundary.
_OPEN, _CLOSE = "\ue000", "\ue001"
_STAND_IN = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
#: Precedes each assistant turn's text, so that its tokens never merge with those of the turn's head.
REPLY_STARTS = f"{_OPEN}0{_CLOSE}"


def role_token(role: str) -> str:
    """The token that begins a turn of that role under `TURN_TEMPLATE`."""
    return f"<|{role}|>"


#: The Jinja template of the models built here: role token, content, end token; nothing else.
TURN_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '"
    + END
    + "' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
#: ChatML for any role, without a system message of its own.
CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


#: Tags that models write, and the texts of tokens that are such tags where the tokenizer does not call them special.
_TAG = re.compile(r"</?[A-Za-z_][A-Za-z0-9_.-]*>")
_KNOWN_TAGS = frozenset(f"<{end}{name}>" for end in ("", "/") for name in ("think", "tool_call", "tool_response"))


class PromptText:
    """Text to tokens for one tokenizer. Has no changing state: callable from any thread.

    ``tags`` are the tags that are one token, with its id.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        special = set(tokenizer.all_special_tokens)
        self.tags: Mapping[str, int] = {
            text: number
            for number, text, is_special in (
                (number, str(token.content), token.special) for number, token in added.items()
            )
            if text in _KNOWN_TAGS or (_TAG.fullmatch(text) and not is_special and text not in special)
        }
        control = sorted({str(token.content) for token in added.values()}, key=len, reverse=True)
        # Whitespace that a tokenizer lists as an added token is ordinary text.
        self._texts = ("", _OPEN, *(text for text in control if text.strip()))
        self._stand_ins = {text: f"{_OPEN}{n}{_CLOSE}" for n, text in enumerate(self._texts) if text}
        self._control = re.compile("|".join(map(re.escape, self._stand_ins)))
        turns = [text for text in self._stand_ins if text not in self.tags]
        self._turn_control = re.compile("|".join(map(re.escape, turns)))
        self._backend = tokenizer.backend_tokenizer

    def protect(self, content: str) -> str:
        """``content`` with stand-ins for the text of control tokens; `encode` makes plain text of them again."""
        return self._control.sub(lambda match: self._stand_ins[match.group()], content)

    def protect_turns(self, content: str) -> str:
        """As `protect`, of a text that the model or lgov wrote: tags in it are tokens."""
        return self._turn_control.sub(lambda match: self._stand_ins[match.group()], content)

    def plain(self, rendered: str) -> str:
        """Rendered text as the tokens of `encode` spell it: each stand-in replaced by its text."""
        return _STAND_IN.sub(lambda match: self._texts[int(match.group(1))], rendered)

    def encode(self, rendered: str) -> list[int]:
        """The token ids of rendered text: control tokens in it are tokens, stand-ins plain text.

        Raises `EndpointError` (400) for a lone surrogate.
        """
        pieces = _STAND_IN.split(rendered)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                ids += self._plain(piece)
            elif text := self._texts[int(piece)]:
                # Cut after its first character, the text is not a control token.
                ids += self._plain(text[:1])
                ids += self._plain(text[1:])
        return ids

    def _plain(self, text: str) -> list[int]:
        try:
            return self._backend.encode(text, add_special_tokens=False).ids if text else []
        except TypeError as error:
            raise EndpointError(f"the text contains a lone surrogate: {text[:60]!a}") from error


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
        spelling = Spelling(self.text.protect, self.text.protect_turns)
        return self._apply_template(self.format.render_messages(messages, tools, spelling))

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids of the prompt (see `render_text`)."""
        return self.text.encode(self.render_text(messages, tools))

    def encode_reply(self, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids with which the model would have written this assistant message, end token included.

        ``render(history)`` followed by this is how ``render([*history, message, ...])`` begins.
        """
        text = self.format.render_messages([message], tools)[-1]["content"]
        return [*self.text.encode(self.text.protect_turns(text)), self.end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included. Bytes that are not UTF-8 become U+FFFD."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return cast("str", text)

    def export_tokenizer(self, folder: Path | str) -> None:
        """Writes the tokenizer with the `standalone_template`. Raises `OSError`."""
        self.tokenizer.save_pretrained(folder)
        Path(folder, "chat_template.jinja").write_text(self.standalone_template(), encoding="utf-8")

    def standalone_template(self) -> str:
        """The chat template with the tool format before it: programs that render it make the prompts of `render_text`.

        For them arguments of calls are objects, as transformers has them.
        """
        template, tools = str(self.tokenizer.chat_template), Path(__file__).with_name("tools.jinja").read_text("utf-8")
        if tools in template:
            return template
        values = {"tool_format": self.format.name, "tool_role": self.format.tool_role, "folds": self.format.folds}
        chosen = "".join(f"{{%- set {name} = {json.dumps(value)} -%}}\n" for name, value in values.items())
        return f"{chosen}{tools}{template}"

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

        started = [
            {**message, "content": (REPLY_STARTS if message["role"] == "assistant" else "") + message["content"]}
            for message in plain
        ]
        try:
            rendered = self.tokenizer.apply_chat_template(started, tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise EndpointError(
                f"the chat template of model {self.name!r} refuses the conversation: {error}"
            ) from error
        return cast("str", rendered)

    def _fitting_format(self) -> ToolFormat:
        """The tool format, with results and system texts under the role ``user`` where the template has no role for them."""
        chosen = tool_format(self.tool_format)
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        if not self._writes([*turns, {"role": chosen.tool_role, "content": "the-text"}]):
            chosen = replace(chosen, tool_role="user")
        return replace(chosen, folds=not self._writes([{"role": "system", "content": "the-text"}, *turns[:1]]))

    def _writes(self, plain: Sequence[Mapping[str, str]]) -> bool:
        """Returns whether the template takes these messages, and writes ``the-text`` of one of them."""
        try:
            return "the-text" in self._apply_template(plain)
        except EndpointError:
            return False
