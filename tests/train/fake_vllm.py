"""What a vLLM server answers, without a model: it stands in for the package in the environment that `VllmServer` starts.

A completion is the number of the adapter's weights, again and again, so that a reply of mixed weights would show. Files in
``VLLM_FAKE`` steer it and keep what it did. Weights of the model itself are a number too: its first value.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from safetensors.numpy import load_file

FOLDER = Path(os.environ.get("VLLM_FAKE", "."))

CONTROL = ("/pause?mode=wait", "/collective_rpc", "/resume", "/sleep?level=1", "/wake_up")


def told(name: str) -> bool:
    return (FOLDER / name).exists()


def log(line: str) -> None:
    with (FOLDER / "log").open("a") as file:
        file.write(line + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    base = ""
    adapters: ClassVar[dict[str, int]] = {}
    weights: ClassVar[list[int]] = [0]

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if told("sick") else 200, {})
        else:
            self.answer(200, {"data": [{"id": self.base, "parent": None}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {os.environ['VLLM_API_KEY']}":
            self.answer(401, {})
        elif self.path == "/v1/load_lora_adapter":
            name, path = body["lora_name"], Path(body["lora_path"])
            if told("dead") or told("refuse"):
                self.answer(500 if told("dead") else 400, {"message": "no room"})
                return
            tensors = load_file(path / "adapter_model.safetensors")
            self.adapters[name] = int(next(tensors[key] for key in tensors if "lora_B" in key).flatten()[0])
            log(f"load {name}")
            self.answer(200, "Success")
        elif self.path == "/v1/unload_lora_adapter":
            known = self.adapters.pop(body["lora_name"], None)
            log(f"unload {body['lora_name']}")
            self.answer(200 if known is not None else 404, {})
        elif self.path in CONTROL:
            log(self.path)
            if self.path == "/collective_rpc":
                assert body["method"] == "reload_weights"
                file = Path(body["kwargs"]["weights_path"]) / "model.safetensors"
                if told("refuse") and file.exists():
                    self.answer(400, {"message": "no room"})
                    return
                self.weights[0] = int(next(iter(load_file(file).values())).flatten()[0]) if file.exists() else 0
            self.answer(200, {})
        elif body["model"] not in (self.base, *self.adapters):
            self.answer(404, {"error": {"message": "no such model"}})
        else:
            weights = self.adapters.get(body["model"], self.weights[0])
            log(f"call {body['model']}")
            (FOLDER / "asked").write_text(json.dumps(body))
            while told("hold"):
                time.sleep(0.01)
            time.sleep(0.02)
            ids = [10 + weights] * min(4, body["max_tokens"])
            logprobs = {"token_logprobs": [-1.0] * len(ids)}
            choice = {"token_ids": ids, "logprobs": logprobs, "finish_reason": "length"}
            self.answer(200, {"model": body["model"], "choices": [choice]})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    arguments = sys.argv[2:]
    (FOLDER / "arguments").write_text(json.dumps(arguments))
    if told("broken"):
        sys.exit(3)
    Handler.base = arguments[arguments.index("--served-model-name") + 1]
    log("start")
    Server(("127.0.0.1", int(arguments[arguments.index("--port") + 1])), Handler).serve_forever()


def environment_of(folder: Path) -> Path:
    """The Python of an environment that has this file for its vLLM."""
    package = folder / "packages" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text("from fake_vllm import main as main\n")
    python = folder / "python"
    paths = f"{folder / 'packages'}:{Path(__file__).parent}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={paths} VLLM_FAKE={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    return python
