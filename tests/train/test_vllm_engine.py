"""The engine on vLLM, against a server that follows its protocol: publishing, restarts, refusals, no unknown weights."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lgov_core.errors import EndpointError, ModelError, SettingsError, TrainError, UpstreamError
from lgov_core.train.engines import vllm_server
from lgov_core.train.engines import vllm_server as vllm_calls
from lgov_core.train.engines.vllm_policy import VllmPolicy, VllmWeights
from lgov_core.train.engines.vllm_server import AttachedVllm, VllmOptions, VllmServer
from tests.gateway.taught import TOOLS
from tests.train.fake_vllm import environment_of
from tests.train.vllm_parts import Fake, until, weights


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    options = VllmOptions(environment_of(tmp_path), start_s=60)
    with VllmServer("folder", "tiny", options, tmp_path / "vllm.log") as server:
        made = Fake(tmp_path, server, VllmPolicy(server, tmp_path / "adapters"))
        yield made
        made.close()


def test_each_version_has_a_name_and_the_one_before_is_unloaded(fake: Fake) -> None:
    assert (fake.ask().weights_version, fake.ask().response_ids) == (0, (10,) * 4)
    for number in (1, 2):
        assert fake.policy.publish(weights(number)) == number
        reply = fake.ask()
        assert (reply.weights_version, reply.response_ids, reply.logprobs) == (number, (10 + number,) * 4, (-1.0,) * 4)
    first, second = (line.removeprefix("load ") for line in fake.log() if line.startswith("load"))
    assert first.endswith("@1")
    assert second.endswith("@2")
    assert f"unload {first}" in fake.log()
    assert [path.name for path in (fake.folder / "adapters").iterdir()] == ["2"]


def test_a_running_call_ends_with_the_weights_it_began_with(fake: Fake) -> None:
    fake.policy.publish(weights(1))
    (fake.folder / "hold").touch()
    running = fake.begin()
    until(lambda: fake.calls() == 1)
    fake.policy.publish(weights(2))
    assert not any(line.startswith("unload") for line in fake.log()), "it is still needed"
    assert (fake.folder / "adapters" / "1").is_dir()
    (fake.folder / "hold").unlink()
    assert (running.result(30).weights_version, running.result().response_ids) == (1, (11,) * 4)
    until(lambda: any(line.startswith("unload") for line in fake.log()))
    until(lambda: not (fake.folder / "adapters" / "1").exists())
    assert fake.ask().weights_version == 2


def test_twenty_swaps_under_load_lose_and_mix_no_call(fake: Fake) -> None:
    with fake.under_load() as replies:
        for number in range(1, 21):
            fake.policy.publish(weights(number))
            time.sleep(0.03)
    assert len({reply.weights_version for reply in replies}) > 10
    assert all(set(reply.response_ids) == {10 + reply.weights_version} for reply in replies)
    assert fake.engine.figures() == {"vllm_restarts": 0, "vllm_calls_lost": 0}


def test_a_killed_server_comes_back_with_the_current_weights_before_any_call(fake: Fake) -> None:
    fake.policy.publish(weights(3), version=3)
    (fake.folder / "hold").touch()
    running = fake.begin()
    until(lambda: fake.calls() == 1)
    os.kill(fake.server.pid, signal.SIGKILL)
    with pytest.raises(UpstreamError, match="vLLM did not answer"):
        running.result(30)
    (fake.folder / "hold").unlink()
    until(lambda: fake.server.restarts == 1)
    reply = fake.ask()
    assert (reply.weights_version, reply.response_ids) == (3, (13,) * 4)
    started = fake.log().index("start", 1)
    assert [line.split(" ")[0] for line in fake.log()[started:]] == ["start", "load", "call"]
    assert fake.engine.figures() == {"vllm_restarts": 1, "vllm_calls_lost": 1}


def test_publishing_into_a_killed_server_waits_for_it(fake: Fake) -> None:
    fake.policy.publish(weights(1))
    os.kill(fake.server.pid, signal.SIGKILL)
    assert fake.policy.publish(weights(2)) == 2
    assert fake.ask().response_ids == (12,) * 4


def test_publishing_outlasts_a_server_whose_engine_died(fake: Fake) -> None:
    """It answers 500 for some seconds, until it ends."""

    def end() -> None:
        (fake.folder / "dead").unlink()
        os.kill(fake.server.pid or 0, signal.SIGKILL)

    (fake.folder / "dead").touch()
    threading.Timer(4.0, end).start()
    assert fake.policy.publish(weights(1)) == 1
    assert fake.server.restarts == 1
    assert fake.ask().response_ids == (11,) * 4


def test_a_server_that_is_no_longer_healthy_is_started_again(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_HEALTH_S", 0.0)
    pid = fake.server.pid
    (fake.folder / "sick").touch()
    until(lambda: fake.server.restarts == 1)
    (fake.folder / "sick").unlink()
    assert fake.ask().weights_version == 0
    assert fake.server.pid != pid


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    options = VllmOptions(environment_of(tmp_path), start_s=60)
    (tmp_path / "broken").touch()
    with (
        pytest.raises(UpstreamError, match="it ended with status 3 before it answered") as failed,
        VllmServer("folder", "tiny", options, tmp_path / "vllm.log"),
    ):
        pass
    assert failed.value.hint is not None
    assert "vllm.log" in failed.value.hint
    with pytest.raises(SettingsError, match="no Python with vLLM"):
        VllmServer("folder", "tiny", VllmOptions(tmp_path / "nowhere"), tmp_path / "vllm.log")
    with pytest.raises(SettingsError, match="no room for adapters of rank 1024"):
        VllmServer("folder", "tiny", VllmOptions(tmp_path / "python", rank=1024), tmp_path / "vllm.log")


def test_a_server_that_does_not_come_back_fails_the_calls(fake: Fake) -> None:
    (fake.folder / "broken").touch()
    os.kill(fake.server.pid, signal.SIGKILL)
    until(lambda: fake.server.restarts == 1)
    with pytest.raises(UpstreamError, match="vLLM is not running: it ended with status 3"):
        fake.ask()
    with pytest.raises(UpstreamError, match="vLLM is not running"):
        fake.policy.publish(weights(1))


def test_what_cannot_be_published_changes_nothing(fake: Fake) -> None:
    fake.policy.publish(weights(1))
    with pytest.raises(ModelError, match="vLLM is published adapters only"):
        fake.policy.publish({"model.embed_tokens.weight": torch.zeros(2)})
    with pytest.raises(ModelError, match="not finite"):
        fake.policy.publish(weights(1) | {"a.lora_A.weight": torch.tensor([[float("nan")] * 64] * 2)})
    with pytest.raises(ModelError, match=r"version 1 .* is not above 1"):
        fake.policy.publish(weights(2), version=1)
    (fake.folder / "refuse").touch()
    with pytest.raises(TrainError, match=r"vLLM does not load version 2: 400: .*no room"):
        fake.policy.publish(weights(2))
    (fake.folder / "refuse").unlink()
    assert [path.name for path in (fake.folder / "adapters").iterdir()] == ["1"]
    reply = fake.ask()
    assert (reply.weights_version, reply.response_ids) == (1, (11,) * 4)


def test_a_full_disk_is_said_and_leaves_the_version_before(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    fake.policy.publish(weights(1))
    with monkeypatch.context() as patched:
        patched.setattr("lgov_core._util.files.sync_file", full)
        with pytest.raises(TrainError, match=r"version 2 cannot be written .*No space left"):
            fake.policy.publish(weights(2))
    assert fake.ask().response_ids == (11,) * 4
    assert fake.policy.publish(weights(2)) == 2


@pytest.mark.parametrize("kind", [VllmPolicy, lambda server, folder: VllmWeights(server, folder, "folder")])
def test_a_disk_that_is_full_while_weights_are_written_is_said(kind: Any, fake: Fake, tmp_path: Path) -> None:
    policy = kind(fake.server, tmp_path / "written")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))
    try:
        with pytest.raises(TrainError, match="version 1 cannot be written"):
            policy.publish(weights(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)


def test_seeds_are_those_that_vllm_takes(fake: Fake) -> None:
    for seed, sent in ((7, 7), (-1, 2**63 - 1), (2**63, 0), (None, None)):
        fake.ask(seed=seed)
        assert json.loads((fake.folder / "asked").read_text())["seed"] == sent


def test_replies_that_are_narrowed_have_no_log_probabilities(fake: Fake) -> None:
    assert fake.ask(top_p=0.9).logprobs is None
    assert fake.ask(temperature=0.001).logprobs is None
    assert fake.ask(temperature=0.0).logprobs is not None
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    assert fake.ask(body={"response_format": schema}).logprobs is None
    assert "%json" in json.loads((fake.folder / "asked").read_text())["structured_outputs"]["grammar"]
    assert fake.ask(body={"tool_choice": "required"}, tools=TOOLS).logprobs is None
    assert "@run_sql" in json.loads((fake.folder / "asked").read_text())["structured_outputs"]["grammar"]
    assert fake.ask(tools=TOOLS).logprobs is not None
    with pytest.raises(EndpointError, match="logit_bias"):
        fake.ask(body={"logit_bias": {"5": 1}})


@pytest.mark.parametrize("fork", ["0", "os.fork()"], ids=["alone", "whose forked child lives on"])
def test_the_server_ends_with_a_trainer_that_is_killed(tmp_path: Path, fork: str) -> None:
    program = (
        "import os, sys, time; from pathlib import Path\n"
        "from lgov_core.train.engines.vllm_server import VllmOptions\n"
        "from lgov_core.train.engines.vllm_server import VllmServer\n"
        "folder, trainer = Path(sys.argv[1]), os.getpid()\n"
        "with VllmServer('folder', 'tiny', VllmOptions(folder / 'python', start_s=60), folder / 'vllm.log') as server:\n"
        f"    child = {fork}\n"
        "    if child or os.getpid() == trainer: print(server.pid, server.url, child, flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment_of(tmp_path)
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pid, url, child = trainer.stdout.readline().split()
        assert vllm_calls.is_healthy(url)
        trainer.kill()
        try:
            until(lambda: not vllm_calls.is_healthy(url))
        finally:
            if int(child):
                os.kill(int(child), signal.SIGKILL)
    until(lambda: _has_ended(int(pid)))


def _has_ended(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]  # not reaped yet by whoever adopted it
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_attached_server_that_lost_the_weights_gets_them_again(fake: Fake) -> None:
    attached = AttachedVllm(f"{fake.server.url}/v1", key=fake.server.key)
    with attached:
        assert attached.base == fake.server.base
        fake.policy = fake.engine.policies[""] = VllmPolicy(attached, fake.folder / "attached")
        fake.policy.publish(weights(5), version=5)
        assert fake.ask().response_ids == (15,) * 4
        vllm_calls.ask(attached, "/v1/unload_lora_adapter", {"lora_name": fake.policy.current.name})
        with pytest.raises(UpstreamError, match="had lost the weights"):
            fake.ask()
        assert fake.ask().response_ids == (15,) * 4


def test_prompts_repeat_the_tokens_of_earlier_replies(fake: Fake) -> None:
    first = fake.ask()
    assert first.prompt_ids is not None
    assert first.response_ids is not None
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "Go on"},
    ]
    second = fake.ask(messages=history)
    assert second.prompt_ids is not None
    whole = (*first.prompt_ids, *first.response_ids)
    assert second.prompt_ids[: len(whole)] == whole


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers everything with a page, as a web site would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Welcome</html>")


def test_a_web_site_is_no_vllm() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Pages) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{site.server_port}"
        with pytest.raises(UpstreamError, match="names no model"), AttachedVllm(url):
            pass
        site.shutdown()


def test_what_does_not_speak_http_is_no_vllm(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = other.accept()
                    connection.sendall(b"SSH-2.0-other\r\n")
                    connection.close()

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(UpstreamError, match="does not answer"), AttachedVllm(url, key=None, start_s=1.0):
            pass
    assert "waiting for it, at most 1 s" in caplog.text
    for wrong in ("localhost:8000", "vllm"):
        with pytest.raises(SettingsError, match="is not the URL of a vLLM"):
            AttachedVllm(wrong, key=None)


def test_a_start_that_another_server_answers_fails_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: Any, **__: Any) -> Any:
        raise http.client.BadStatusLine("SSH-2.0")

    monkeypatch.setattr(vllm_calls, "_open", odd)
    options = VllmOptions(environment_of(tmp_path), start_s=0.5)
    with (
        pytest.raises(UpstreamError, match="did not answer within"),
        VllmServer("folder", "tiny", options, tmp_path / "vllm.log"),
    ):
        pass


def test_a_module_beside_the_child_does_not_stand_for_a_library(tmp_path: Path) -> None:
    """The child is run as a file, so its folder would be the first place of modules."""
    folder, site = tmp_path / "engines", tmp_path / "site"
    (site / "vllm" / "entrypoints" / "cli").mkdir(parents=True)
    (site / "vllm" / "entrypoints" / "cli" / "main.py").write_text("import sys\ndef main(): print(sys.argv)\n")
    folder.mkdir()
    shutil.copy(Path(vllm_server.__file__).with_name("vllm_child.py"), folder)
    for name in ("vllm", "select", "signal"):
        (folder / f"{name}.py").write_text("raise SystemExit('one beside the child')\n")
    child = subprocess.Popen(
        [sys.executable, str(folder / "vllm_child.py"), "model"],
        env={**os.environ, "PYTHONPATH": str(site)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        assert child.stdout.read().strip() == "['vllm', 'serve', 'model']"


def test_processes_that_vllm_spawns_import_its_program_whatever_is_first_on_their_path() -> None:
    """multiprocessing runs the program of the parent again in each of them, with the parent's path of modules."""
    program = Path(vllm_server.__file__).with_name("vllm_child.py")
    first = "import runpy, sys; sys.path.insert(0, '/nowhere/python.zip')"
    again = f"{first}; runpy.run_path({str(program)!r}, run_name='__mp_main__')"
    spawned = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)
    assert (spawned.returncode, spawned.stderr) == (0, "")
