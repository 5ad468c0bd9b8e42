"""A model without a model, on the standard library alone: it makes the tool calls it was given, then answers.

For programs that are to run without a key, such as the agent of ``lgov init``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lgov_core.types import new_id


def offline_model(*calls: tuple[str, Mapping[str, Any]]) -> str:
    """Starts an OpenAI-style server of chat completions in a daemon thread of this process; returns its base URL.

    Its model calls the tools in ``calls`` (name and arguments), one a turn, then answers with what they returned. Replies are
    not streamed.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = json.dumps(_completion(body, calls)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def _completion(body: Mapping[str, Any], calls: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The reply to a request: how often the model has spoken in its transcript says which call comes next."""
    messages: list[dict[str, Any]] = body["messages"]
    turn = sum(message["role"] == "assistant" for message in messages)
    reply: dict[str, Any] = {"role": "assistant", "content": None}
    if turn < len(calls):
        name, arguments = calls[turn]
        function = {"name": name, "arguments": json.dumps(arguments)}
        reply["tool_calls"] = [{"id": new_id("call"), "type": "function", "function": function}]
    else:
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        refused = sum(result.startswith(("DENIED", "NOT RUN YET")) for result in results)
        refusals = f"Refused calls: {refused}. " if refused else ""
        reply["content"] = f"{refusals}The last answer I got: {results[-1] if results else 'none'}"
    choice = {"index": 0, "message": reply, "finish_reason": "tool_calls" if turn < len(calls) else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": new_id("chatcmpl"), "object": "chat.completion", "created": int(time.time())}
    return {**head, "model": body.get("model", "offline"), "choices": [choice], "usage": usage}
