"""The commands of the pair as processes of their own, and Ctrl-C at every phase of theirs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from click.testing import CliRunner
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lgov_core import Client
from lgov_core.commands import cli
from lgov_core.errors import ClientError, LgovError, TrainError
from lgov_core.models import load_model
from lgov_core.server.local import serving
from lgov_core.server.training import TrainingServer
from lgov_core.store import open_store
from tests.pair import pair_agents as agents
from tests.pair.conftest import ENVIRONMENT, settings
from tests.slow import slow

SERVER = (sys.executable, "-m", "lgov_core.server")
LGOV = (sys.executable, "-m", "lgov_core")
CONFIG = """\
model: {max_new_tokens: 4}
training: {batch_size: 2, group_size: 2, steps: 3, epochs: 20, learning_rate: 0.005, kl_coef: 0.0}
"""


def until(condition: Callable[[], Any], what: str = "") -> Any:
    end = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < end, f"it did not come to that: {what}"
        time.sleep(0.02)
    return found


class Server:
    """A training server in a process."""

    def __init__(self, command: tuple[str, ...], log: Path, **environ: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stderr=output, env={**ENVIRONMENT, **environ})

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def url(self) -> str:
        def find() -> Any:
            assert self.process.poll() is None, self.said
            return re.search(r"training server on (http://\S+),", self.said)

        return str(until(find, "the server is up")[1])

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=120)


@pytest.fixture
def start(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server with the small model: ``start(*more arguments, command=SERVER)``."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    servers: list[Server] = []

    def begin(*more: str, command: tuple[str, ...] = SERVER, **environ: str) -> Server:
        config, folder = str(tmp_path / "config.yaml"), ("--folder", str(tmp_path / "run"))
        server = command == SERVER
        given = ("--port", "0", "--config", config, *folder) if server else (config, "--serve", "127.0.0.1:0", *folder)
        log = tmp_path / f"server-{len(servers)}.log"
        servers.append(Server((*command, *given, *more), log, LIGHTNING_MODEL_PATH=str(model_folder), **environ))
        return servers[-1]

    yield begin
    for server in servers:
        with contextlib.suppress(OSError):
            server.process.kill()
        server.process.wait()


TASKS = [{"question": "digits 1"}, {"question": "digits 2"}]


def test_a_server_in_a_process_takes_tasks_and_is_interrupted_while_it_waits(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    server = start(
        *("--gpus", "0", "--algorithm", "grpo"), LGOV_LOG_LEVEL="info", LGOV_LOG_FILE=str(log), LGOV_LOG_JSON="true"
    )
    assert Client(server.url, quiet=True).upload_data(TASKS) == {"train": 2, "test": 0}
    refused = httpx.post(f"{server.url}/v1/chat/completions", json={"model": "tiny", "messages": "plover"})
    assert refused.status_code == 400
    assert server.interrupt() == 130
    assert "continue with --resume" in server.said
    assert "plover" not in log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (answered,) = (line for line in lines if line["event"] == "request" and line["route"] == "/v1/chat/completions")
    assert (answered["level"], answered["status"]) == ("info", 400)
    assert {line["event"] for line in lines} >= {"request", "request failed"}


@slow
def test_a_server_is_interrupted_while_it_waits_and_while_it_collects_and_goes_on(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    waiting = start()
    Client(waiting.url, quiet=True).upload_data(TASKS)
    assert waiting.interrupt() == 130
    # The data are there again, and so is the run that is interrupted in mid-collection now.
    collecting = start("--resume", command=(*LGOV, "train"))
    tasks = [{"question": "digits", "begun": str(tmp_path / "begun"), "go": str(tmp_path / "go")}]
    client = Client(collecting.url, quiet=True, patience_s=0.0)
    client.upload_data(tasks)
    failed: list[Any] = []

    def train() -> None:
        try:
            client.train(agents.waits, nworkers=2)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    until((tmp_path / "begun").exists, "an agent runs")
    assert collecting.interrupt() == 130, collecting.said
    (tmp_path / "go").touch()
    thread.join(timeout=60)
    assert failed, "the client was not told"
    assert "continue with --resume" in collecting.said
    resumed = start("--resume")
    result = Client(resumed.url, quiet=True).train(agents.digits, nworkers=2)
    assert result.updates == 3
    assert resumed.interrupt() == 130
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "train"] == [1, 2, 3]


CLIENT = """\
import sys
from pathlib import Path
from lgov_core import Client
from tests.pair import pair_agents

if __name__ == "__main__":
    client = Client(sys.argv[1], quiet=True)
    client.upload_data([{"question": "digits", "begun": sys.argv[2], "go": sys.argv[3]}])
    client.train(pair_agents.waits, nworkers=2, workers=sys.argv[4], auto_instrumentation=False)
"""


@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=slow)])
def test_an_interrupted_client_hands_its_attempts_back_and_another_goes_on(
    serve: Callable[..., Any], tmp_path: Path, workers: str
) -> None:
    server = serve(steps=1, batch_size=1, group_size=2)
    (tmp_path / "client.py").write_text(CLIENT)
    begun, go = tmp_path / "begun", tmp_path / "go"
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "client.py"), server.url, str(begun), str(go), workers],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
    )
    until(begun.exists, "an agent runs")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert said.startswith(b"interrupted; the server keeps every update")
    assert (said.count(b"\n"), process.returncode) == (1, 130)
    until(lambda: not any(one.outcome is None for one in server.store.attempts()), "attempts are handed back")
    assert {one.error for one in server.store.attempts()} <= {"the client was interrupted", None}
    go.touch()
    subprocess.run(process.args, env=ENVIRONMENT, check=True, timeout=120)  # the same program goes on
    progress = server.coordinator.progress(None, 0)
    assert (progress["state"], progress["step"]) == ("done", 1)


def test_other_tasks_are_refused_while_a_training_goes_on(serve: Callable[..., Any], tmp_path: Path) -> None:
    server = serve(steps=1, batch_size=1, group_size=2)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)

    def agent(resource: Any, task: Any) -> float:
        assert Client(server.url, quiet=True).upload_data(TASKS) == {"train": len(TASKS), "test": 0}
        with pytest.raises(ClientError, match="other tasks"):
            Client(server.url, quiet=True).upload_data([{"question": "another"}])
        return agents.digits(resource, task)

    assert client.train(agent).counts.get("raised", 0) == 0


def test_steps_beyond_the_epochs_are_said(serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(steps=9, epochs=1, batch_size=1, group_size=2)
    client = Client(server.url)
    client.upload_data(TASKS)
    assert client.train(agents.digits).updates == len(TASKS)
    said = capsys.readouterr().err
    each = len(TASKS)
    assert f"NOTE: 1 epoch of the tasks are {each} updates, not 9: --epochs {-(-9 // each)} makes those" in said


def test_a_run_that_a_client_stops_ends_with_a_checkpoint_and_the_next_goes_on(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    server = serve(steps=50, batch_size=1, group_size=2)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)

    def agent(resource: Any, task: Any) -> float:
        if len(list((tmp_path / "run" / "transitions").glob("*"))) == 2:
            Client(server.url, quiet=True).stop()
        return agents.digits(resource, task)

    with pytest.raises(TrainError, match="was stopped at the server"):
        client.train(agent)
    progress = server.coordinator.progress(None, 0)
    assert 1 <= progress["step"] < 50
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_an_update_that_is_given_up_is_not_made_until_the_run_goes_on(model_folder: Path, tmp_path: Path) -> None:
    chosen = settings(model_folder, steps=1, update_epochs=2)
    stop, numbers = threading.Event(), itertools.count()

    def agent(resource: Any, task: Any) -> float:
        agents.ask(resource, task.question)
        return float(next(numbers) % 2)

    with TrainingServer(chosen, folder=tmp_path / "run") as server:

        def give_up(*_: Any) -> None:  # at the first of two steps: another pass comes
            stop.set()
            server.give_up()

        thread = threading.Thread(target=server.serve, args=(stop,))
        thread.start()
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        hook = register_optimizer_step_pre_hook(give_up)
        with pytest.raises(TrainError, match="was stopped at the server"):
            client.train(agent, nworkers=1)
        thread.join()
        hook.remove()
        assert server.updates == 0
    with TrainingServer(chosen, folder=tmp_path / "run", resume=True) as server:
        assert server.updates == 1, "it is made of the batch on record, before anybody asks"
        assert len(server.store.rollouts()) == 8


def test_a_run_is_resumed_with_the_model_it_began_with(model_folder: Path, tmp_path: Path) -> None:
    with TrainingServer(settings(model_folder, dtype="bfloat16"), folder=tmp_path / "run"):
        pass  # killed before its first checkpoint
    with TrainingServer(settings(model_folder, dtype="auto"), folder=tmp_path / "run", resume=True) as server:
        assert server.settings.model.dtype == "bfloat16"
    other = load_model(model_folder)
    with torch.no_grad():
        next(other.module.parameters()).add_(0.1)
    other.save(tmp_path / "other")
    resumed = TrainingServer(settings(tmp_path / "other", steps=2), folder=tmp_path / "run", resume=True)
    with pytest.raises(TrainError, match=r"began with .*, and .*other in bfloat16 has other weights"), resumed:
        raise AssertionError("not reached")


def test_ctrl_c_while_the_update_in_progress_ends_gives_it_up(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, updating, go = itertools.count(), threading.Event(), threading.Event()
    give_up, given_up = TrainingServer.give_up, list[TrainingServer]()

    def and_tell(server: TrainingServer) -> None:
        give_up(server)
        given_up.append(server)
        go.set()

    monkeypatch.setattr(TrainingServer, "give_up", and_tell)

    def agent(resource: Any, task: Any) -> float:
        agents.ask(resource, task.question)
        return float(next(numbers) % 2)

    def train(client: Client) -> None:
        with contextlib.suppress(LgovError):
            client.train(agent, nworkers=1, auto_instrumentation=False)

    def waits_for_the_end() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        return "join" in (found.f_code.co_name for found, _ in traceback.walk_stack(frame))

    def interrupt() -> None:
        until(waits_for_the_end, "the training is to end")
        os.kill(os.getpid(), signal.SIGINT)

    def hold(*_: Any) -> None:
        updating.set()
        go.wait(60)

    interrupting, training = threading.Thread(target=interrupt), list[threading.Thread]()

    def serve_until_it_updates() -> None:
        with serving(settings(model_folder, steps=1, update_epochs=2), tmp_path / "run") as server:
            client = Client(server.url, quiet=True, patience_s=0.0)
            client.upload_data(TASKS)
            training.append(threading.Thread(target=train, args=(client,)))
            training[0].start()
            updating.wait()
            interrupting.start()

    hook = register_optimizer_step_pre_hook(hold)
    with pytest.raises(KeyboardInterrupt):
        serve_until_it_updates()
    hook.remove()
    for thread in (interrupting, *training):
        thread.join()
    assert [server.updates for server in given_up] == [0]


def test_a_run_that_ended_before_its_last_test_makes_up_for_that_and_nothing_else(
    model_folder: Path, tmp_path: Path
) -> None:
    chosen = settings(model_folder, steps=1, batch_size=1, group_size=2)
    with serving(chosen, tmp_path / "run") as server:
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS, TASKS)

        def stopping(resource: Any, task: Any) -> float:
            if resource.mode == "test" and server.updates == 1:
                Client(server.url, quiet=True).stop()
            return agents.digits(resource, task)

        for _ in range(2):  # it is stopped, gone on with, and stopped again
            with pytest.raises(TrainError, match="was stopped at the server"):
                client.train(stopping, nworkers=1)
            assert server.updates == 1
    with serving(chosen, tmp_path / "run", resume=True) as server:
        client = Client(server.url, quiet=True)
        result = client.train(agents.digits)
        assert (server.updates, result.updates, len(result.test_curves["reward"])) == (1, 1, 2)
        state = server.coordinator.run
        assert client.train(agents.digits).updates == 1
        assert server.coordinator.run is not state, "the next one is a run of its own"
        assert server.updates == 2
    # Killed between its last line of figures and its end: the client that comes then is told how it ended.
    known = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**known, "ended": False}))
    with serving(chosen, tmp_path / "run", resume=True) as server:
        until(lambda: server.coordinator.run is not None and server.coordinator.run.ended, "the run has ended")
        assert Client(server.url, quiet=True).train(agents.digits).updates == 1
        assert server.updates == 2


def test_lgov_train_runs_a_training_from_files(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "from tests.pair.pair_agents import digits\n\ndef agent(resource, task):\n    return digits(resource, task)\n"
    )
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    (tmp_path / "config.yaml").write_text(
        CONFIG + "data: {train: tasks.jsonl, test: tasks.jsonl}\nruntime: {auto_instrumentation: false, nworkers: 2}\n"
    )
    command = [
        *LGOV, "train", "config.yaml", "--agent", "agent.py:agent", "--model", str(model_folder), "--steps", "2",
        "--folder", "run", "--json", "--profile",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["updates"], len(report["reward"]), len(report["held_out_reward"])) == (2, 2, 2)
    assert "replies-truncated" in report["warnings"], "an untrained model's replies reach any limit"
    shares = report["profile"]["shares"]
    assert shares["sampling"] > 0
    assert shares["framework"] > 0
    assert sum(shares.values()) == pytest.approx(1, abs=0.001)
    assert "\ntime: " in done.stderr
    store = open_store(tmp_path / "run" / "store.sqlite", make=False)
    assert len(list(store.calls())) == 2 * 4 + 2 * 2
    assert [span for span in store.spans() if span.claimed] == [], "the program that trains has seen it itself"
    store.close()


#: Prints, has a program print, and leaves the folder that the process was started in.
UNRULY = """
import os, subprocess, tempfile
from tests.pair.pair_agents import digits

def agent(resource, task):
    print("the agent")
    subprocess.run(["echo", "its program"], check=True)
    os.chdir(tempfile.gettempdir())
    return digits(resource, task)
"""


def test_what_an_agent_in_a_thread_prints_and_its_folder_change_no_result(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(UNRULY)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    (tmp_path / "config.yaml").write_text(
        CONFIG + "data: {train: tasks.jsonl}\nruntime: {auto_instrumentation: false, workers: threads}\n"
    )
    command = [*LGOV, "train", "config.yaml", "--agent", "agent.py:agent", "--model", str(model_folder), "--steps", "2"]
    done = subprocess.run(
        [*command, "--folder", "run", "--json"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 2
    assert {"the agent", "its program"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--algorithm", "grop"], 2, "did you mean grpo?"),
        (["--algorithm", "sft"], 2, "learns from recorded traces"),
        (["--gpus", "4000"], 2, "4000 GPUs are asked for"),
        (["--model", "/no/such/folder"], 1, "no model folder"),
        (["--resume"], 2, "--resume needs the folder"),
        (["--host", "0.0.0.0"], 1, "can be reached from other machines"),
    ],
    ids=range(6),
)
def test_what_a_server_cannot_do_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path, arguments: list[str], code: int, said: str
) -> None:

    from lgov_core.server.command import server_command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_MODEL_PATH", str(model_folder))
    result = CliRunner().invoke(server_command, ["--port", "0", *arguments])
    assert result.exit_code == code, result.output
    assert said in result.output


def test_a_broken_task_file_is_told_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"a": 1}\n{"a": \n')
    result = CliRunner().invoke(cli, ["train", "--agent", "no.module:agent", "--tasks", "tasks.jsonl", "--model", "m"])
    assert result.exit_code == 1
    assert "tasks.jsonl:2: not JSON" in result.output
    assert not (tmp_path / "runs").exists()
