"""A scripted model server: the example runs without a key. It answers with the text of the last message.

python offline_server.py 9000
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer({"object": "list", "data": [{"id": "echo", "object": "model", "owned_by": "me"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = [message["content"] for message in asked["messages"] if message["role"] == "user"]
        message = {"role": "assistant", "content": f"You said: {said[-1]}"}
        self.answer(
            {
                "id": f"chatcmpl-{len(said)}-{id(asked):x}",
                "object": "chat.completion",
                "created": 0,
                "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": len(said), "completion_tokens": 3, "total_tokens": len(said) + 3},
            }
        )

    def answer(self, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Echo)
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()
