"""A program that sends requests to a model server in many ways, for `test_openai_unevaluated.py`.

Prints a line of JSON for each way: how many of its requests the server got, and the error that the program saw.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai

TEXT = {"role": "assistant", "content": "hm"}
REPLY: Any = {"id": "x", "object": "chat.completion", "created": 1, "model": "m",
              "choices": [{"index": 0, "message": TEXT, "finish_reason": "stop"}]}  # fmt: skip
SERVED: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        SERVED.append(self.path)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *args: Any) -> None: ...


def serving(certificate: str | None = None) -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


PORT, CERTIFICATE = serving(), sys.argv[1]
TLS_PORT = serving(CERTIFICATE)
BASE, TLS = f"http://127.0.0.1:{PORT}", f"https://localhost:{TLS_PORT}"
TRUSTING = ssl.create_default_context(cafile=CERTIFICATE)
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


def client(url: str = BASE, cls: Any = openai.OpenAI, **options: Any) -> Any:
    return cls(base_url=f"{url}/v1", api_key="x", max_retries=0, **options)


def second_copy() -> Any:
    """The openai package again, under another name, which no guard knows."""
    spec: Any = importlib.util.spec_from_file_location(
        "vendored", openai.__file__, submodule_search_locations=[str(Path(openai.__file__).parent)]
    )
    module = sys.modules["vendored"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return client(cls=module.OpenAI).chat.completions.create(**CHAT)


def kept_open() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    for _ in range(3):
        connection.request("POST", PATH, b"{}")
        connection.getresponse().read()


def by_hand() -> None:
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nContent-Length: 2\r\n\r\n".encode())
        connection.sendall(b"{}")
        connection.recv(10)


async def with_aiohttp(url: str, **options: Any) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.post(url + PATH, json={}, **options) as response:
        await response.read()


async def with_async_httpx(url: str, library: Any) -> None:
    async with library.AsyncClient(verify=TRUSTING) as sender:
        await sender.post(url + PATH, json={})


async def asynchronous(url: str, call: Callable[[Any], Any]) -> None:
    options = {"http_client": httpx2.AsyncClient(verify=TRUSTING)} if url == TLS else {}
    await call(client(url, openai.AsyncOpenAI, **options))


async def in_a_task() -> None:
    await asyncio.create_task(with_async_httpx(BASE, httpx))


def in_a_child() -> None:
    text = f"import urllib.request; urllib.request.urlopen({BASE + PATH!r}, data=b'{{}}').read()"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def in_a_fork() -> None:
    if (pid := os.fork()) == 0:
        try:
            urllib.request.urlopen(BASE + PATH, data=b"{}").read()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def with_requests() -> None:
    import requests

    requests.post(TLS + PATH, json={}, verify=CERTIFICATE)


EVALUATED: dict[str, Callable[[], Any]] = {
    "a client": lambda: client().chat.completions.create(**CHAT),
    "a raw response": lambda: client().chat.completions.with_raw_response.create(**CHAT),
    "TLS": lambda: client(TLS, http_client=httpx2.Client(verify=TRUSTING)).chat.completions.create(**CHAT),
    "an asynchronous client": lambda: asyncio.run(asynchronous(BASE, lambda on: on.chat.completions.create(**CHAT))),
    "TLS, asynchronous": lambda: asyncio.run(asynchronous(TLS, lambda on: on.chat.completions.create(**CHAT))),
    "a thread's client": lambda: ThreadPoolExecutor().submit(client().chat.completions.create, **CHAT).result(),
}
UNEVALUATED: dict[str, Callable[[], Any]] = {
    "completions": lambda: client().completions.create(model="m", prompt="hi"),
    "two slashes": lambda: client().post("//chat/completions", body=CHAT, cast_to=dict),
    "retrieve": lambda: client().responses.retrieve("resp_1"),
    "stored completions": lambda: client().chat.completions.list(),
    "files": lambda: client().files.list(),
    "batches": lambda: client().batches.list(),
    "threads": lambda: client().get("/threads/t1", cast_to=dict),
    "models": lambda: client().models.list(),
    "with a raw response": lambda: client().embeddings.with_raw_response.create(model="m", input="hi"),
    "asynchronous": lambda: asyncio.run(asynchronous(TLS, lambda on: on.files.list())),
    "a second copy": second_copy,
    "httpx": lambda: httpx.post(BASE + PATH, json={}),
    "httpx2": lambda: httpx2.post(BASE + PATH, json={}),
    "httpx, TLS": lambda: httpx.post(TLS + PATH, json={}, verify=TRUSTING),
    "httpx, asynchronous": lambda: asyncio.run(with_async_httpx(BASE, httpx)),
    "httpx2, asynchronous, TLS": lambda: asyncio.run(with_async_httpx(TLS, httpx2)),
    "a task": lambda: asyncio.run(in_a_task()),
    "a thread": lambda: ThreadPoolExecutor().submit(httpx.post, BASE + PATH, json={}).result(),
    "requests, TLS": with_requests,
    "urllib": lambda: urllib.request.urlopen(BASE + "/v1//responses", data=b"{}").read(),
    "urllib, quoted": lambda: urllib.request.urlopen(BASE + "/v1/%63hat/completions", data=b"{}").read(),
    "a connection kept open": kept_open,
    "aiohttp": lambda: asyncio.run(with_aiohttp(BASE)),
    "aiohttp, TLS": lambda: asyncio.run(with_aiohttp(TLS, ssl=TRUSTING)),
    "a socket": by_hand,
    "a child": in_a_child,
    "a fork": in_a_fork,
}


def main() -> None:
    ways = [(name, way, True) for name, way in EVALUATED.items()]
    ways += [(name, way, False) for name, way in UNEVALUATED.items()]
    for name, way, is_evaluated in ways:
        before, error = len(SERVED), ""
        try:
            way()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised} {raised.__cause__ or ''}"
        print(json.dumps([name, is_evaluated, len(SERVED) - before, error]), flush=True)


if __name__ == "__main__":
    main()
