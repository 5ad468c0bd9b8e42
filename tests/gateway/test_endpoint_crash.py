"""The endpoint is killed in mid-run, twenty times: every call that a client got an answer to is in the store."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedModelServer

CHILD = """
import sys
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.types import Rollout

store = SQLiteStore(sys.argv[1])
if not store.rollouts():
    store.add_rollouts([Rollout("r1", task_id="t", run_id="r", input={})])
    store.start_attempt("r1", 1)
server = EndpointServer([UpstreamEngine(sys.argv[2])], store).start()
print(server.url, flush=True)
sys.stdin.read()
"""


class Asking(threading.Thread):
    """Asks until the endpoint is gone; keeps the ids of the replies that came whole."""

    def __init__(self, url: str, stream: bool) -> None:
        super().__init__()
        self.url = f"{url}/rollout/r1/attempt/1/v1/chat/completions"
        self.stream = stream
        self.acknowledged: list[str] = []
        self.several = threading.Event()

    def run(self) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": self.stream}
        with httpx.Client() as client:
            while True:
                try:
                    reply = client.post(self.url, json=body)
                except httpx.TransportError:
                    return
                assert reply.status_code == 200
                # For a stream the finishing chunk is enough: a client may stop reading there.
                assert not self.stream or reply.text.endswith("data: [DONE]\n\n")
                self.acknowledged.append(reply.text.split('"id":')[1].split('"')[1])
                if len(self.acknowledged) == 3:
                    self.several.set()


KILLS = 20


def test_acknowledged_calls_survive_a_kill(tmp_path: Path, record_property):
    path = tmp_path / "store.sqlite"
    acknowledged: list[str] = []
    restarts: list[float] = []
    with ScriptedModelServer(lambda body: "an answer", token_ids=True) as model:
        for _ in range(KILLS):
            began = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path), model.base_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert child.stdout is not None
                url = child.stdout.readline().strip()
                restarts.append(time.perf_counter() - began)
                askers = [Asking(url, stream) for stream in (False, True, False, True)]
                for asker in askers:
                    asker.start()
                assert all(asker.several.wait(60) for asker in askers)
                child.kill()
                for asker in askers:
                    asker.join(30)
            finally:
                child.kill()
                child.communicate()
            acknowledged += [response_id for asker in askers for response_id in asker.acknowledged]
    with SQLiteStore(path) as store:
        calls = list(store.calls(["r1"]))
        recorded = {call.response_id for call in calls}
    record_property("slowest_restart_s", max(restarts))  # shown, not judged: it depends on the machine
    assert len(acknowledged) >= KILLS * 4 * 3
    assert len(set(acknowledged)) == len(acknowledged)
    assert set(acknowledged) <= recorded
    assert all(call.response_ids and call.logprobs for call in calls)
