"""A call's reply as JSON text, without the prompt's token ids, which stand in a column of their own.

A server that is asked for token ids writes those of the whole prompt into each of its replies: kept as text, a conversation
would take space that grows with the square of its turns. Exact: what is left out comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store.encoding import is_plain, json_text
from lgov_core.types import CapturedCall

_NAME: Final = "prompt_token_ids"
_KEY: Final = b'"prompt_token_ids":'
_OF_NUMBERS: Final = b"0123456789, \t\r\n"

#: What stands before a text from which the ids are left out, by where they were: a JSON object begins with neither.
_IN_BODY: Final = "b"
_IN_CHOICE: Final = "c"


def reply_text(call: CapturedCall) -> str:
    """The JSON text of the reply of ``call``.

    Where the reply says the call's prompt ids, null stands in their place, and before the text a letter for the place:
    ``b`` for the reply's own ``prompt_token_ids``, ``c`` for those of its only choice. Raises `StoreError` for what JSON
    cannot hold.
    """
    response, what = call.response, f"response of call {call.response_id}"
    ids = call.prompt_ids
    if not ids:
        return json_text(response, what)
    if _says(response, ids) and (text := _cut(response) or _anew(response, {**response, _NAME: None}, what)):
        return _IN_BODY + text
    choices = response.get("choices")
    if isinstance(choices, list | tuple) and len(choices) == 1 and _says(choice := choices[0], ids):
        without = {**response, "choices": [{**choice, _NAME: None}]}
        if text := _cut(response) or _anew(choice, without, what):
            return _IN_CHOICE + text
    return json_text(response, what)


def reply_of(text: str, prompt_ids: tuple[int, ...] | None) -> dict[str, Any]:
    """What `reply_text` was made from. Raises `StoreError` where the ids that were left out are not there."""
    if not text.startswith((_IN_BODY, _IN_CHOICE)):
        return json.loads(text)
    if prompt_ids is None:
        raise StoreError("a reply refers to its prompt's token ids, which are not there", hint="the store is damaged")
    body = json.loads(text[1:])
    (body if text[0] == _IN_BODY else body["choices"][0])[_NAME] = list(prompt_ids)
    return body


def _says(holder: Any, ids: tuple[int, ...]) -> bool:
    said = holder.get(_NAME) if isinstance(holder, Mapping) else None
    return isinstance(said, list | tuple) and tuple(said) == ids


def _anew(holder: Mapping[str, Any], without: Mapping[str, Any], what: str) -> str | None:
    """The text of ``without``; None where ``holder`` says what only equals the ids, as 1.0 and true equal 1."""
    return json_text(without, what) if set(map(type, holder[_NAME])) <= {int} else None


def _cut(response: Mapping[str, Any]) -> str | None:
    """The bytes that a reply came in with null for its list of ids; None where nobody can be sure which part that is.

    Writing the rest anew would take several times as long.
    """
    received: bytes | None = getattr(response, "received", None)
    if received is None or not is_plain(received):
        return None
    start = received.find(_KEY) + len(_KEY)
    if (
        received.count(_NAME.encode()) != 1 or start < len(_KEY) or b"\\u" in received
    ):  # there twice, or spelled otherwise
        return None
    end = received.find(b"]", start)
    said = received[start:end].lstrip()
    if end < 0 or not said.startswith(b"[") or said[1:].translate(None, _OF_NUMBERS):  # a list of something else
        return None
    try:
        return f"{received[:start].decode()}null{received[end + 1 :].decode()}"
    except UnicodeDecodeError:
        return None
