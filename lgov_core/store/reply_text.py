"""A call's reply as JSON text, without the prompt's token ids, which have a column of their own.

A server that is asked for token ids repeats those of the whole prompt in each reply: as text, a conversation would take
space that grows with the square of its turns. Exact: what is left out is read back unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store.encoding import json_text
from lgov_core.types import CapturedCall

_NAME: Final = "prompt_token_ids"
#: The letter before a text without the ids, by where they were; a JSON object begins with neither.
_IN_BODY: Final = "b"
_IN_CHOICE: Final = "c"


def reply_text(call: CapturedCall) -> str:
    """The JSON text of the reply of ``call``.

    Where the reply repeats the call's prompt ids, they are replaced by null, and a letter before the text says where:
    ``b`` for the reply's own ``prompt_token_ids``, ``c`` for those of its only choice. Raises `StoreError` for what JSON
    cannot hold.
    """
    response, what = call.response, f"response of call {call.response_id}"
    if call.prompt_ids:
        if _repeats(response, call.prompt_ids):
            return _IN_BODY + json_text({**response, _NAME: None}, what)
        choices = response.get("choices")
        if isinstance(choices, list | tuple) and len(choices) == 1 and _repeats(choices[0], call.prompt_ids):
            return _IN_CHOICE + json_text({**response, "choices": [{**choices[0], _NAME: None}]}, what)
    return json_text(response, what)


def reply_of(text: str, prompt_ids: tuple[int, ...] | None) -> dict[str, Any]:
    """What `reply_text` was made from. Raises `StoreError` where the ids that were left out do not exist."""
    if not text.startswith((_IN_BODY, _IN_CHOICE)):
        return json.loads(text)
    if prompt_ids is None:
        raise StoreError("a reply refers to its prompt's token ids, which do not exist", hint="the store is damaged")
    body = json.loads(text[1:])
    (body if text[0] == _IN_BODY else body["choices"][0])[_NAME] = list(prompt_ids)
    return body


def _repeats(holder: Any, ids: tuple[int, ...]) -> bool:
    """Whether ``holder`` has exactly these ids; 1.0 and true only equal 1."""
    given = holder.get(_NAME) if isinstance(holder, Mapping) else None
    return isinstance(given, list | tuple) and tuple(given) == ids and set(map(type, given)) <= {int}
