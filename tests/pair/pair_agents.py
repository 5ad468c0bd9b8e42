"""Agents for the tests: functions of a resource and a task, as a user would write them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any


def ask(resource: Any, text: str, **more: Any) -> str:
    """One chat completion by plain HTTP, as a program without any framework would do it."""
    return _complete(resource, text, {}, more)


def say(resource: Any, agent: str, text: str) -> str:
    """`ask`, by the agent of this name."""
    return _complete(resource, text, {"x-lgov-agent": agent}, {})


def _complete(resource: Any, text: str, headers: dict[str, str], more: dict[str, Any]) -> str:
    body = {"model": "whatever", "messages": [{"role": "user", "content": text}], **more}
    request = urllib.request.Request(
        f"{resource.model_api}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer not-used", **headers},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"] or ""


def digits(resource: Any, task: Any) -> float:
    """Is paid for the share of digits in what the model says."""
    return sum(one.isdigit() for one in ask(resource, task.question)) / 4


async def digits_async(resource: Any, task: Any) -> float:
    import asyncio

    return await asyncio.to_thread(digits, resource, task)


def by_name(resource: Any, task: Any) -> dict[str, float]:
    """Gives rewards by name."""
    said = ask(resource, task.question)
    return {"task": float(len(said) > 3), "brevity": -len(said) / 100}


def once(task: Any) -> bool:
    """Whether this is the first time that anybody asks this of the task's file."""
    try:
        Path(task.marker).open("x").close()
    except FileExistsError:
        return False
    return True


def dies_once(resource: Any, task: Any) -> float:
    """Its process is killed at the first try."""
    if once(task):
        os.kill(os.getpid(), signal.SIGKILL)
    return digits(resource, task)


def hangs_once(resource: Any, task: Any) -> float:
    """Hangs at the first try, longer than any test waits; says so if it comes to its end."""
    if once(task):
        threading.Event().wait(200)
        Path(f"{task.marker}-waited-for").touch()
        return 0.0
    return digits(resource, task)


def raises(resource: Any, task: Any) -> float:
    ask(resource, task.question)
    raise ValueError("the agent cannot count")


def waits(resource: Any, task: Any) -> float:
    """Says that it has begun, and goes on when it is let."""
    said = digits(resource, task)
    Path(task.begun).touch()
    while not Path(task.go).exists():
        time.sleep(0.02)
    return said


def process_of(resource: Any, task: Any) -> float:
    """Tells which process ran it."""
    with Path(task.pids).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return digits(resource, task)
