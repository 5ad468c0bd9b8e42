"""Keeps the id of a streamed reply, by which a model call and the endpoint's record of it are joined.

LangChain puts the id of a whole reply into its ``response_metadata`` and drops that of a streamed one. From the first
middleware, handler or `instrument` on, ``response_metadata["id"]`` of a streamed OpenAI-style reply is there as well. Nothing
else of a reply changes.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

_LOCK = threading.Lock()

#: The class that was last found and made to keep them.
_KEEPING: list[Any] = [None]


def keep_reply_ids() -> None:
    """Makes streamed replies of ``langchain_openai`` keep their ids. Again, or without that package, it does nothing.

    The package is looked for anew each time, because a program may import it later than lgov.
    """
    package: Any = sys.modules.get("langchain_openai.chat_models.base")
    base = getattr(package, "BaseChatOpenAI", None)
    if base is _KEEPING[0]:
        return
    convert = getattr(base, "_convert_chunk_to_generation_chunk", None)
    if base is None or convert is None:  # another version of it, or it is being imported
        return
    with _LOCK:
        if base is _KEEPING[0]:
            return

        @functools.wraps(convert)
        def convert_with_id(self: Any, chunk: Any, *args: Any, **kwargs: Any) -> Any:
            converted = convert(self, chunk, *args, **kwargs)
            info: Any = getattr(converted, "generation_info", None) or {}
            # Only beside the other facts about the whole reply: they come once, in the last chunk of the text.
            if "finish_reason" in info and (reply_id := _id_of(chunk)) is not None:
                converted.generation_info = {"id": reply_id, **info}
            return converted

        base._convert_chunk_to_generation_chunk = convert_with_id
        _KEEPING[0] = base


def _id_of(chunk: Any) -> str | None:
    """The id in a chunk as the API sent it, or inside an event of the client library's stream helper."""
    found = chunk.get("id") or (chunk.get("chunk") or {}).get("id") if isinstance(chunk, dict) else None
    return found if isinstance(found, str) and found else None
