"""How a conversation becomes the text of a prompt, and that text the prompt's tokens.

Under `TURN_TEMPLATE` (for models made here) and `CHATML_TEMPLATE` (for SmolLM2) a later prompt begins with exactly the
earlier prompt and reply, end token included, so that the calls of a rollout extend one another.

`PromptText` turns rendered text into tokens. Control tokens count only where the template wrote them: a tool result
that contains the text of an end-of-turn token stays text and cannot forge a turn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lgov_core.errors import EndpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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


class PromptText:
    """Text to tokens for one tokenizer. Has no changing state: callable from any thread."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        control = sorted({str(token.content) for token in added.values()}, key=len, reverse=True)
        # Whitespace that a tokenizer lists as an added token is ordinary text.
        self._texts = ("", _OPEN, *(text for text in control if text.strip()))
        self._stand_ins = {text: f"{_OPEN}{n}{_CLOSE}" for n, text in enumerate(self._texts) if text}
        self._control = re.compile("|".join(map(re.escape, self._stand_ins)))
        self._backend = tokenizer.backend_tokenizer

    def protect(self, content: str) -> str:
        """``content`` with stand-ins for the text of control tokens; `encode` makes plain text of them again."""
        return self._control.sub(lambda match: self._stand_ins[match.group()], content)

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
