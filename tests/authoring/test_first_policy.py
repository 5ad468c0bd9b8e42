"""The policy that `lgov init -- COMMAND` writes of what a program offers to its model: no false denial on the next run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner

from lgov_core.authoring.rules import CWD_GUESSED, checkable_schema, meanings, open_places, shut_tools
from lgov_core.commands import cli
from lgov_core.policies import ApprovalPolicy, load_policies, load_policy_file
from lgov_core.process import offline_start
from lgov_core.process.offline_start import OfflineStart, start_offline, starting_policy
from lgov_core.types import Action, Effect, Point
from tests.slow import slow

PROGRAMS = Path(__file__).parent / "first_policy"
ROOT = Path(__file__).parents[2]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``lgov`` with these words in ``folder``, with a question on standard input."""
    command = [sys.executable, "-m", "lgov_core", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LGOV_")}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        command,
        cwd=folder,
        input="Hello there\n",
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )


def processes_in(folder: Path) -> list[int]:
    """The processes that work in ``folder``."""
    return [process.pid for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(folder)]


def written_policy(program: str, folder: Path) -> dict[str, Any]:
    """The rules by name of the policy that init writes for ``program``, which is put into ``folder``."""
    for name in (f"{program}.py", "../../mcp_files_server.py"):
        shutil.copy(PROGRAMS / name, folder)
    (folder / "notes.txt").write_text("RAN hello")
    done = run(folder, "init", "--", "python", f"{program}.py")
    assert done.returncode == 0, done.stderr
    return {rule["name"]: rule for rule in yaml.safe_load((folder / "policy.yaml").read_text())["rules"]}


def denied(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the closing report says was blocked."""
    return [line for line in done.stderr.splitlines() if line.startswith(("lgov: denied", "lgov: escalate"))]


@pytest.mark.parametrize(
    ("program", "tools", "ran"),
    [
        ("lc_injected", "count rooms check_in", 4),
        ("lc_supervisor", "transfer_to_refund_desk transfer_to_arithmetic add look_up", 2),
        pytest.param("lc_bound", "multiply Weather convert", 3, marks=slow),
        pytest.param("lc_choices", "create_ticket set_light upload", 6, marks=slow),
        pytest.param("lc_structured", "Route find_ticket", 3, marks=slow),
        ("oa_handoffs", "transfer_to_faq_agent transfer_to_triage_agent move_me faq_lookup update_seat", 3),
        pytest.param("oa_agents_as_tools", "translate_to_spanish italian_agent pack", 1, marks=slow),
        pytest.param("oa_mcp", "read_file erase_file add", 1, marks=slow),
        pytest.param("oa_hosted", "web_search shell apply_patch sum_up", 2, marks=slow),
        ("plain_openai", "Query write_note", 2),
        pytest.param("ag_selector", "search_web percentage_change delete_record", 2, marks=slow),
        ("ag_team", "flight_lookup ask_the_desk hotel poet transfer_to_planner", 2),
    ],
)
def test_the_next_run_has_no_false_denial(program: str, tools: str, ran: int, tmp_path: Path) -> None:
    rules = written_policy(program, tmp_path)
    assert {*tools.split()} == {name for name in rules if ": " not in name}
    done = run(tmp_path, "run", "--children", "best-effort", "--", "python", f"{program}.py")
    assert (done.returncode, denied(done)) == (0, []), done.stderr
    assert done.stdout.count("RAN") >= ran, done.stdout


def test_arguments_are_held_to_where_they_may_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = written_policy("places", tmp_path)
    assert [name for name in rules if ": " in name] == [
        "read_file: path",
        "list_files: path",
        "fetch: egress",
        "run_sql: sql",
        "run_python: box",
        "refund: approval",
    ]
    assert (tmp_path / "policy.yaml").read_text().count(CWD_GUESSED) == 2, "of each rule with a folder"
    done = run(tmp_path, "run", "--", "python", "places.py")
    assert done.stdout.count("RAN ") == 6, done.stdout
    lines = done.stdout.splitlines()[-5:]
    assert [line.partition(":")[0] for line in lines[:4]] == [
        f"DENIED by policy {tool}" for tool in ("read_file", "fetch", "run_sql", "run_python")
    ]
    assert "NOT RUN YET" in lines[4], "no person can be asked here"
    assert "lgov approvals" in lines[4]
    opens = run(tmp_path, "policy", "check", "policy.yaml").stdout
    assert "open:" not in opens
    addresses = {"inside.example.com": "169.254.169.254", "public.example.com": "93.184.216.34"}
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: [(0, 0, 0, "", (addresses[host], 0))])
    policies = load_policy_file(tmp_path / "policy.yaml")
    pages = [{"url": f"https://{host}/", "headers": None} for host in addresses]
    fetches = [Action(Point.PRE_TOOL_CALL, "fetch", arguments=page) for page in pages]
    assert [decision.rule for decision in map(policies.judge, fetches)] == ["url-address", "allow"]


def test_code_runs_in_the_box_that_init_names(tmp_path: Path) -> None:
    assert {"run_shell: shell", "run_code: box"} <= written_policy("ag_code", tmp_path).keys()
    outside = run(tmp_path, "run", "--", "python", "ag_code.py")
    assert "run_code runs in a box only" in outside.stdout
    inside = run(tmp_path, "run", "--confine", "--", "python", "ag_code.py")
    if inside.returncode == 78:
        pytest.skip(f"no box here: {inside.stderr[-200:]}")
    assert "RAN 42" in inside.stdout, inside.stderr


def test_what_an_offline_start_holds(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import socket\n"
        "from agents import Agent, Runner, function_tool\n"
        "@function_tool\n"
        "def look() -> str:\n"
        "    raise SystemExit('a tool ran')\n"
        "look_ran = Runner.run_sync(Agent(name='a', tools=[look]), 'x').final_output\n"
        "try:\n"
        "    socket.create_connection(('192.0.2.1', 9), timeout=5)\n"
        "    reached = True\n"
        "except OSError:\n"
        "    reached = False\n"
        "open('note', 'w').write(f'{reached} {look_ran}')\n"
    )
    previous = os.getcwd()
    os.chdir(tmp_path)
    try:
        start = start_offline(["python", "agent.py"])
    finally:
        os.chdir(previous)
    assert (start.calls, start.status, list(start.tools)) == (1, 0, ["look"])
    assert (tmp_path / "note").read_text().startswith("False DENIED"), "its own code runs, in its folder"


def test_a_server_that_does_not_end_is_ended_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(
        "import http.server\n"
        "http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler).serve_forever()\n"
    )
    monkeypatch.setattr(offline_start, "MAX_START_S", 8)
    monkeypatch.chdir(tmp_path)
    assert start_offline(["python", "app.py"]).status is None
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]


@pytest.mark.parametrize("first", [[], ["nohup"]], ids=["alone", "nohup"])
def test_an_init_that_is_ended_by_a_signal_ends_what_it_started(tmp_path: Path, first: list[str]) -> None:
    (tmp_path / "app.py").write_text(
        "import http.server\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\n"
        "open('port', 'w').write(str(server.server_port))\n"
        "server.serve_forever()\n"
    )
    command = [*first, sys.executable, "-m", "lgov_core", "init", "--", "python", "app.py"]
    init = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    assert init.stderr is not None
    assert init.stderr.readline() == b"python app.py runs offline; it is ended after 120 s\n"
    assert len(processes_in(tmp_path)) > 1, "of init itself and of what it started"
    if first:
        init.send_signal(signal.SIGHUP)  # which nohup has it ignore
        with pytest.raises(subprocess.TimeoutExpired):
            init.wait(3)
    init.terminate()
    assert init.wait(60) == 128 + signal.SIGTERM
    assert processes_in(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.py", "port"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_client_without_an_adapter_offers_its_tools_too(tmp_path: Path, streamed: bool) -> None:
    asked = (
        "client.messages.stream(**request).__enter__().get_final_message()"
        if streamed
        else "client.messages.create(**request)"
    )
    (tmp_path / "agent.py").write_text(
        "from anthropic import Anthropic\n"
        "client = Anthropic(max_retries=0)\n"
        "schema = {'type': 'object', 'properties': {'path': {'type': 'string'}}, 'required': ['path']}\n"
        "request = dict(model='m', max_tokens=9, messages=[{'role': 'user', 'content': 'x'}],\n"
        "               tools=[{'name': 'read_note', 'description': 'Reads a note.', 'input_schema': schema}])\n"
        f"print({asked}.content[0].text)\n"
    )
    done = run(tmp_path, "init", "--", "python", "agent.py")
    assert done.returncode == 0, done.stderr
    assert "lgov run --endpoint http://127.0.0.1:8321 -- python agent.py" in done.stdout, "no adapter governs it"
    rules = {rule.name: rule for rule in load_policy_file(tmp_path / "policy.yaml").rules}
    assert rules.keys() == {"read_note", "read_note: path"}


def test_a_program_that_reaches_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import sys\nsys.exit('no key')")
    done = run(tmp_path, "init", "--", "python", "agent.py")
    assert done.returncode == 1
    assert "reached no model: it ended with status 1" in done.stderr
    assert "no key" in done.stderr
    assert "lgov policy suggest" in done.stderr
    assert not (tmp_path / "policy.yaml").exists()


def test_a_program_without_tools_gets_a_policy_for_its_costs(tmp_path: Path) -> None:
    start = OfflineStart(calls=1)
    (tmp_path / "policy.yaml").write_text(starting_policy(start, "python agent.py", tmp_path, tmp_path))
    assert [rule.name for rule in load_policy_file(tmp_path / "policy.yaml").rules] == ["costs"]


def test_tools_of_one_name_may_have_the_arguments_of_each(tmp_path: Path) -> None:
    start = OfflineStart()
    for argument in ("number", "name"):
        schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
        start.add({"tools": [{"name": "find", "parameters": schema}]})
    (tmp_path / "policy.yaml").write_text(starting_policy(start, "python agent.py", tmp_path, tmp_path))
    policies = load_policy_file(tmp_path / "policy.yaml")
    verdicts = [
        policies.judge(Action(Point.PRE_TOOL_CALL, "find", arguments=arguments)).effect
        for arguments in ({"number": "1"}, {"name": "a"}, {"other": "a"})
    ]
    assert verdicts == [Effect.ALLOW, Effect.ALLOW, Effect.DENY]


def schema_with(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}}


@pytest.mark.parametrize(
    ("tool", "properties", "expected"),
    [
        ("read_file", {"path": "string"}, {"path": ["path"]}),
        ("save", {"output_file": "string", "text": "string"}, {"path": ["output_file"]}),
        ("move", {"paths": "array"}, {"path": ["paths"]}),
        ("fetch", {"url": "string"}, {"url": ["url"]}),
        ("subscribe", {"webhookUrl": "string"}, {"url": ["webhookUrl"]}),
        ("sql_db_query", {"query": "string"}, {"sql": ["query"]}),
        ("sql_db_query_checker", {"query": "string"}, {}),
        ("search", {"query": "string"}, {}),
        ("bash", {"command": "string"}, {"command": ["command"]}),
        ("robot_command", {"command": "string"}, {}),
        ("run_python", {"code": "string"}, {"code": ["code"]}),
        ("python_repl", {"query": "string"}, {"code": ["query"]}),
        ("find_airport", {"code": "string"}, {}),
        ("send_email", {"to": "string", "body": "string"}, {"final": ["to"]}),
        ("transfer_money", {"iban": "string", "amount": "number"}, {"final": ["iban", "amount"]}),
        ("convert", {"amount": "number", "to": "string"}, {}),
        ("get_email", {"email": "string"}, {}),
        ("search_posts", {"text": "string"}, {}),
        ("transfer_to_refund_agent", {}, {}),
        ("run_python", {}, {"code": []}),
        ("read_file", {}, {"path": []}),
        ("fetch_page", {}, {"url": []}),
    ],
)
def test_what_arguments_mean(tool: str, properties: dict[str, str], expected: dict[str, list[str]]) -> None:
    assert meanings(tool, "function", schema_with(**properties)) == expected
    assert meanings(tool, "handoff", schema_with(**properties)) == {}


def test_check_names_what_rules_leave_open(tmp_path: Path) -> None:
    names = ["fetch", "read_file", "run_python", "say"]
    schemas = {"fetch": schema_with(url="string"), "say": schema_with(text="string")}
    rules: list[Any] = [{"use": "tool", "with": {"allow": names, "schemas": schemas}}]
    expected = [
        "fetch takes a url and no egress rule covers it",
        "read_file takes a path and no path rule covers it",
        "run_python runs code and no box or shell rule covers it",
    ]
    assert open_places(load_policies({"version": 1, "rules": rules}).rules) == expected
    (tmp_path / "policy.yaml").write_text(json.dumps({"version": 1, "rules": rules}))
    assert expected[0] in CliRunner().invoke(cli, ["policy", "check", str(tmp_path / "policy.yaml")]).stdout
    rules.append({"use": "egress", "tools": ["fetch"], "with": {"domains": ["example.com"]}})
    assert open_places(load_policies({"version": 1, "rules": rules}).rules) == expected[1:]


@pytest.mark.parametrize("use", ["flow", "provenance", "approval"])
def test_a_rule_about_where_a_value_comes_from_covers_what_cannot_be_undone(use: str) -> None:
    tool = {"allow": ["send_mail"], "schemas": {"send_mail": schema_with(to="string")}}
    rules: list[Any] = [{"use": "tool", "with": tool}]
    (sentence,) = open_places(load_policies({"version": 1, "rules": rules}).rules)
    assert sentence == "send_mail does what cannot be undone (to) and no approval or flow rule covers it"
    options = {"approval": {}, "flow": {"argument": "to"}, "provenance": {"arguments": ["to"]}}[use]
    rules.append({"use": use, "tools": ["send_mail"], "with": options})
    assert open_places(load_policies({"version": 1, "rules": rules}).rules) == []


def test_check_names_tools_that_one_rule_permits_and_another_denies(tmp_path: Path) -> None:
    files = {"name": "files", "use": "path", "tools": ["read_file", "list_*"], "with": {"roots": ["."], "cwd": "."}}
    known: dict[str, Any] = {"name": "known", "use": "tool", "with": {"allow": ["say"]}}
    expected = "known denies read_file, which files is for: name it in allow, or give known tools: ['say']"
    (tmp_path / "policy.yaml").write_text(json.dumps({"version": 1, "rules": [known, files]}))
    assert f"shut: {expected}\n" in CliRunner().invoke(cli, ["policy", "check", str(tmp_path / "policy.yaml")]).stdout
    policies = load_policies({"version": 1, "rules": [known, files]})
    action = Action(Point.PRE_TOOL_CALL, "read_file", arguments={"path": "a"})
    assert (policies.judge(action).effect, shut_tools(policies.rules)[:1]) == (Effect.DENY, [expected])
    for repaired in ({**known, "tools": ["say"]}, {**known, "with": {"allow": ["say", "read_file", "list_*"]}}):
        policies = load_policies({"version": 1, "rules": [repaired, files]})
        assert (policies.judge(action).effect, shut_tools(policies.rules)) == (Effect.ALLOW, [])


def test_a_schema_is_written_for_the_values_that_are_judged() -> None:
    schema = {
        "title": "T",
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date-time", "description": "x"},
            "note": {"type": "string", "default": None},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": False, "maxItems": 2},
            "guest": {"$ref": "#/$defs/Guest", "description": "x"},
        },
        "$defs": {"Guest": {"type": "object", "title": "Guest"}},
    }
    assert checkable_schema(schema) == {
        "type": "object",
        "properties": {
            "when": {"type": "string"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "pair": {"type": "array", "maxItems": 2},
            "guest": {"$ref": "#/$defs/Guest"},
        },
        "$defs": {"Guest": {"type": "object"}},
    }


def test_an_approval_is_not_waited_for_where_no_person_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    action = Action(Point.PRE_TOOL_CALL, "refund", arguments={"amount": 1})
    policy = ApprovalPolicy(wait_s=60, unattended="deny", name="ask")
    decision = policy.judge(action)
    assert decision is not None
    assert decision.effect is Effect.ESCALATE
    assert "no person can be asked here" in decision.reason
    waited: list[float] = []
    told = ApprovalPolicy(wait_s=60, unattended="deny", command=["true"], name="ask")
    monkeypatch.setattr(told.requests, "ask", lambda asking: waited.append(asking.waits_s))
    told.judge(action)
    assert waited[0] > 50


@pytest.mark.parametrize("start", [("agent.py",), ("-m", "agent")])
def test_a_program_may_have_modules_of_its_own(start: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "TOOL = {'type': 'function', 'function': {'name': 'weather', 'parameters': {}}}\n"
    )
    (tmp_path / "agent.py").write_text(
        "import helper\nfrom openai import OpenAI\n"
        "OpenAI().chat.completions.create(model='m', messages=[], tools=[helper.TOOL])\n"
    )
    assert "weather" in run(tmp_path, "init", "--", "python", *start).stdout
