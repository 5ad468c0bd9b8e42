from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import lgov_core
from lgov_core.audit import AuditLog
from lgov_core.cli import cli
from lgov_core.commands.group import Exit, LazyGroup, exit_of
from lgov_core.errors import AuditError, InstrumentationError, PolicyDenied, PolicyFileError, SettingsError
from lgov_core.policies import load_policy_file
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import ALLOW

LGOV = (sys.executable, "-c", "from lgov_core.cli import main; main()")

POLICY = """\
version: 1
name: desk
rules:
  - {name: tools, use: tool, with: {allow: [search]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without settings, above which no settings are looked for."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LGOV_")]:
        monkeypatch.delenv(name)
    return tmp_path


def lgov(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments, prog_name="lgov")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.commands:
        command = group.load(name) if isinstance(group, LazyGroup) else group.commands[name]
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


LEAVES = dict(commands(cli))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_offers_json_and_documents_its_exit_codes(path: tuple[str, ...]) -> None:
    result = lgov(*path, "--help")
    assert result.exit_code == Exit.OK
    assert "--json" in result.output
    assert re.search(r"Exit (status|codes):", result.output)
    assert LEAVES[path].help


def test_the_help_lists_every_command_without_loading_any() -> None:
    code = """
import sys
from lgov_core.cli import main
sys.argv = ["lgov", "--help"]
try:
    main()
finally:
    loaded = {name.partition(".")[0] for name in sys.modules}
    ours = {name for name in sys.modules if name.startswith("lgov_core.") and "lgov_core.types" not in name}
    print(sorted(loaded & {"rich", "yaml", "sqlglot", "torch", "pluggy", "starlette", "sqlite3"}))
    print(sorted(ours))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    *_, heavy, ours = done.stdout.splitlines()
    assert heavy == "[]"
    assert ours == "['lgov_core.cli', 'lgov_core.commands', 'lgov_core.commands.group', 'lgov_core.errors']"
    for name in cli.commands:  # type: ignore[attr-defined]
        assert re.search(rf"^  {name} +\w", done.stdout, re.M)


def test_version() -> None:
    assert lgov("--version").output == f"lgov {lgov_core.__version__}\n"


def test_a_misspelt_command_is_wrong_usage_and_the_nearest_is_named() -> None:
    result = lgov("polcy")
    assert result.exit_code == Exit.USAGE
    assert "policy" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 2),
        (PolicyDenied(ALLOW), 3),
        (AuditError("x"), 4),
        (InstrumentationError("x"), 78),
        (PolicyFileError("x"), 1),
    ],
)
def test_errors_have_exit_codes(error: Any, code: int) -> None:
    assert exit_of(error) == code


# ---------------------------------------------------------------------- policy check


def test_a_good_policy_file(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    result = lgov("policy", "check", "policy.yaml")
    assert result.exit_code == Exit.OK
    assert "policy.yaml: ok" in result.stdout
    about = json.loads(lgov("policy", "check", "policy.yaml", "--json").stdout)
    assert (about["ok"], about["name"], about["rules"], about["mode"]) == (True, "desk", ["tools"], "enforce")
    assert re.fullmatch(r"[0-9a-f]{64}", about["digest"])


def test_a_wrong_policy_file_is_a_finding_with_its_line(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.replace("use: tool", "use: tol"))
    result = lgov("policy", "check", "policy.yaml")
    assert (result.exit_code, result.stdout) == (Exit.FINDING, "")
    assert re.search(r"^error: policy.yaml:4: .*tol", result.stderr)
    assert "Traceback" not in result.stderr
    result = lgov("policy", "check", "policy.yaml", "--json")
    assert result.exit_code == Exit.FINDING
    about = json.loads(result.stdout)
    assert (about["ok"], about["problems"][0]["line"]) == (False, 4)


SEVERAL = """version: 1
rules:
  - {name: a, use: sqll, with: {dialect: sqlite}}
  - {name: b, use: sql, with: {dialect: sqlite}}
  - {name: c, use: sql, with: {dialect: sqlit}}
  - {name: d, tool: [x], use: deny}
  - {name: e, use: cost, with: {max_calls: 3, ledger: budget.db}}
"""


def test_the_mistakes_of_all_rules_are_told_at_once(folder: Path) -> None:
    (folder / "policy.yaml").write_text(SEVERAL)
    result = lgov("policy", "check", "policy.yaml")
    assert result.exit_code == Exit.FINDING
    assert re.findall(r"^error: policy.yaml:(\d+): ", result.stderr, re.M) == ["3", "5", "6"]
    about = json.loads(lgov("policy", "check", "policy.yaml", "--json").stdout)
    assert [problem["line"] for problem in about["problems"]] == [3, 5, 6]
    with pytest.raises(
        PolicyFileError, match=r"policy\.yaml:3"
    ) as raised:  # nothing is opened for a set that will not be
        load_policy_file(folder / "policy.yaml")
    assert raised.value.further == ()
    assert not (folder / "budget.db").exists()


def test_policy_check_without_a_file_is_wrong_usage() -> None:
    assert lgov("policy", "check").exit_code == Exit.USAGE


# ---------------------------------------------------------------------- errors and colours


def test_errors_come_as_json_when_json_is_wanted() -> None:
    result = lgov("traces", "list", "missing.sqlite", "--json")
    assert (result.exit_code, result.stdout) == (Exit.FINDING, "")
    assert json.loads(result.stderr)["error"]["code"] == "store"


def test_json_after_two_dashes_belongs_to_the_program() -> None:
    result = lgov("run", "--timeout", "-1", "--", "python", "agent.py", "--json")
    assert result.exit_code == Exit.CANNOT_GOVERN
    assert result.stderr.startswith("error: not run: ")


def test_there_is_no_colour_when_standard_error_is_not_a_terminal(folder: Path) -> None:
    done = subprocess.run(
        [*LGOV, "policy", "check", "missing.yaml"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == Exit.FINDING
    assert done.stderr.startswith("error: ")
    assert "\x1b" not in done.stderr


# ---------------------------------------------------------------------- run


def test_run_with_unusable_settings_runs_nothing(folder: Path) -> None:
    (folder / "lgov.toml").write_text('polcy = "policy.yaml"\n')
    (folder / "agent.py").write_text("open('it-ran', 'w')\n")
    result = lgov("run", "--", "python", "agent.py")
    assert result.exit_code == Exit.CANNOT_GOVERN
    assert "did you mean policy" in result.stderr
    assert not (folder / "it-ran").exists()


def test_run_takes_the_policy_from_the_settings_and_passes_status_and_arguments_on(folder: Path) -> None:
    (folder / "rules").mkdir()
    (folder / "rules" / "desk.yaml").write_text(POLICY)
    (folder / "lgov.toml").write_text('policy = "rules/desk.yaml"\naudit = "record.db"\n')
    (folder / "agent.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)\n")
    command = [*LGOV, "run", "python", "agent.py", "--policy", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (5, "['--policy', 'mine']\n")
    assert (folder / "record.db").is_file()


def test_run_without_a_command_is_wrong_usage() -> None:
    assert lgov("run").exit_code == Exit.USAGE


# ---------------------------------------------------------------------- plugins, doctor, models


def test_plugins_lists_the_built_in_adapters() -> None:
    found = {plugin["name"]: plugin for plugin in json.loads(lgov("plugins", "--json").stdout)}
    assert found["lgov_langchain.plugin"] == {
        "name": "lgov_langchain.plugin",
        "builtin": True,
        "hooks": ["lgov_framework"],
    }
    assert "lgov_langchain.plugin" in lgov("plugins").stdout


def test_a_plugin_that_cannot_be_loaded_is_a_finding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "broken_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lgov]\nbroken = no_such_module\n")
    monkeypatch.syspath_prepend(str(folder))
    result = lgov("plugins")
    assert result.exit_code == Exit.FINDING
    assert "no_such_module" in result.stderr
    result = lgov("doctor", "--json")
    assert result.exit_code == Exit.FINDING
    assert any("no_such_module" in problem for problem in json.loads(result.stdout)["problems"])


def test_doctor_shows_settings_with_origins_and_finds_what_is_wrong(folder: Path) -> None:
    (folder / "lgov.toml").write_text("\nport = 9\n")
    result = lgov("doctor", "--json")
    assert result.exit_code == Exit.OK
    report = json.loads(result.stdout)
    assert report["settings"]["port"] == {"value": 9, "origin": "lgov.toml:2"}
    assert report["lgov"] == lgov_core.__version__
    assert {"langchain", "autogen", "openai-agents"} <= {framework["name"] for framework in report["frameworks"]}
    assert report["extras"]["langchain"]["langchain-core"]
    assert "lgov.toml:2" in lgov("doctor").stdout
    (folder / "lgov.toml").write_text("prot = 9\n")
    result = lgov("doctor")
    assert result.exit_code == Exit.FINDING
    assert "did you mean port" in result.stdout


def test_models_list_says_which_are_here(folder: Path) -> None:
    (folder / "lgov.toml").write_text('cache = "cache"\n')
    here = {model["name"]: model["available"] for model in json.loads(lgov("models", "list", "--json").stdout)}
    assert here == {"tiny": True, "smollm2": False}
    model = folder / "cache" / "models" / "smollm2"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert str(model) in lgov("models", "list", "--json").stdout
    assert lgov("models", "pull", "smollm2").stdout == f"{model}\n"


# ---------------------------------------------------------------------- serve


class Serving:
    """``lgov serve`` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*LGOV, "serve", "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Serving:
        assert self.process.stdout is not None
        text = ""
        while line := self.process.stdout.readline():
            text += line
            if line == "}\n":
                break
        self.about = json.loads(text)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, **headers: str) -> dict[str, Any]:
        body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        request = urllib.request.Request(
            f"{self.about['base_url']}/chat/completions",
            data=body,
            headers={"content-type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_records_calls_and_closes_its_store_when_told_to_stop(
    folder: Path, how: signal.Signals, status: int
) -> None:
    with (
        ScriptedModelServer(["Hello."]) as model,
        Serving("--upstream", model.base_url, "--store", "calls.sqlite") as serving,
    ):
        reply = serving.ask(x_lgov_rollout_id="rol_1", x_lgov_attempt="1")
        assert serving.end(how) == status
    store = open_store(folder / "calls.sqlite")
    try:
        (call,) = store.calls()
    finally:
        store.close()
    assert (call.response_id, call.rollout_id) == (reply["id"], "rol_1")


def test_serve_asks_an_upstream_in_the_apis_that_it_is_said_to_speak(folder: Path) -> None:
    for speaks, asked in (("chat, responses", "responses"), ("chat", "chat/completions")):
        with (
            ScriptedModelServer(["Hello."]) as model,
            Serving("--upstream", model.base_url, "--upstream-speaks", speaks) as serving,
        ):
            body = json.dumps({"model": "scripted", "input": "Hi"}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{serving.about['base_url']}/responses", body, headers)
            with urllib.request.urlopen(request, timeout=30) as reply:
                assert json.load(reply)["object"] == "response"
            assert [one.path.removeprefix("/v1/") for one in model.requests] == [asked]


def test_serve_with_a_secret_wants_a_key(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    secret.chmod(0o600)
    with (
        ScriptedModelServer(["Hello."]) as model,
        Serving("--upstream", model.base_url, "--key-secret-file", "secret", "--show-admin-key") as serving,
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            serving.ask()
        refused.value.close()
        assert refused.value.code == 401
        assert serving.ask(authorization=f"Bearer {serving.about['admin_key']}")["choices"]


def test_serve_under_a_policy_and_before_several_upstreams(folder: Path) -> None:
    (folder / "policy.yaml").write_text(
        'version: 1\nrules:\n  - {name: quiet, "on": [pre_model_call], use: deny, with: {reason: Not today.}}\n'
    )
    with (
        ScriptedModelServer(["Hello."]) as model,
        Serving("--upstream", f"http://127.0.0.1:9/v1, {model.base_url}") as free,
        Serving("--upstream", model.base_url, "--policy", "policy.yaml") as governed,
    ):
        assert free.ask(x_lgov_rollout_id="rol_1", x_lgov_attempt="1")["choices"][0]["message"]["content"] == "Hello."
        said = governed.ask()["choices"][0]["message"]["content"]
        assert said.startswith("DENIED by policy quiet")
        assert governed.end(signal.SIGTERM) == 0
    assert lgov("audit", "verify", ".lgov/audit.db").exit_code == Exit.OK
    result = lgov("serve", "--upstream", model.base_url, "--policy", "missing.yaml")
    assert result.exit_code != Exit.OK
    assert "missing.yaml" in result.stderr


def test_a_secret_that_others_can_read_is_refused(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    secret.chmod(0o644)
    result = lgov("serve", "--upstream", "http://127.0.0.1:9/v1", "--key-secret-file", "secret")
    assert result.exit_code == Exit.USAGE
    assert "chmod 600" in result.stderr


def test_serve_says_when_the_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = lgov("serve", "--upstream", "http://127.0.0.1:9/v1", "--port", str(port))
    assert result.exit_code == Exit.FINDING
    assert f"port {port}" in result.stderr
    assert "hint:" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--model", "smollm2", "--upstream", "http://127.0.0.1:9/v1")])
def test_serve_wants_one_of_model_and_upstream(arguments: tuple[str, ...]) -> None:
    result = lgov("serve", *arguments)
    assert result.exit_code == Exit.USAGE
    assert "one of model and upstream" in result.stderr


# ---------------------------------------------------------------------- what a shell does to a command


@pytest.mark.parametrize(
    "command",
    [
        ("policy", "chek"),
        ("policy", "check"),
        ("traces", "list", "--outcome", "good", "x"),
        ("audit", "verify", "x", "--key", "zz"),
        ("demo", "--seeds", "0"),
        ("serve", "--model", "m", "--host", "0.0.0.0"),
        ("transitions", "x", "--cap", "task=nan"),
        ("traces", "prune", "x", "--keep-last", "1"),
        ("audit", "erase", "x", "--entry", "1"),
    ],
)
def test_json_is_asked_for_and_an_error_of_usage_is_json(command: tuple[str, ...], folder: Path) -> None:
    (folder / "x").write_bytes(b"")
    result = lgov(*command, "--json")
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert json.loads(result.stderr.splitlines()[-1])["error"]["message"]


@pytest.mark.parametrize("name", [".", "folder", "/"])
@pytest.mark.parametrize("command", ["policy init", "policy init --force", "audit export a.db --output"])
def test_a_folder_is_no_file_to_write(command: str, name: str, folder: Path) -> None:
    (folder / "folder").mkdir()
    AuditLog(folder / "a.db").close()
    result = lgov(*command.split(), name)
    assert result.exit_code == Exit.FINDING
    assert result.stderr.startswith("error: ")


def test_nothing_is_exported_of_a_rollout_that_is_not_there(folder: Path) -> None:
    open_store("store.sqlite").close()
    (folder / "kept.jsonl").write_text("kept")
    result = lgov("traces", "export", "store.sqlite", "--rollout", "gone", "--output", "kept.jsonl")
    assert result.exit_code == Exit.FINDING
    assert "gone" in result.stderr
    assert (folder / "kept.jsonl").read_text() == "kept"
    assert lgov("traces", "export", "store.sqlite", "--output", ".").exit_code == Exit.FINDING


def test_an_unknown_credit_scheme_is_told_also_where_there_is_nothing_to_credit() -> None:
    open_store("store.sqlite").close()
    result = lgov("transitions", "store.sqlite", "--credit", "gigp")
    assert result.exit_code == Exit.USAGE
    assert "there is no credit scheme 'gigp'" in result.stderr


def test_a_position_that_no_record_has_is_an_error_of_usage() -> None:
    AuditLog(Path("a.db")).close()
    assert lgov("audit", "export", "a.db", "--after", "9" * 20).exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("shown", "encoding"), [("\\ud800", "utf-8:surrogateescape"), ("\\ud800", "utf-8"), ("\\u00e9", "ascii")]
)
def test_what_standard_output_cannot_write_is_escaped(shown: str, encoding: str, folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "cases.jsonl").write_text(f'{{"id": "{shown}", "name": "{shown}", "expect": "deny"}}')
    action = f'{{"name": "{shown}"}}'
    for command in (("explain", "policy.yaml", "--action", action), ("eval", "policy.yaml", "cases.jsonl")):
        done = subprocess.run(
            [*LGOV, "policy", *command],
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == (0 if command[0] == "eval" else Exit.DENIED), done.stderr
        assert b"Traceback" not in done.stderr
    assert json.loads(done.stdout.splitlines()[0])["id"] == json.loads(f'"{shown}"')


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_message(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*LGOV, "policy", "explain", "policy.yaml", "--action", '{"name": "search"}'],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (Exit.FINDING, "error: No space left on device\n")


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        result = CliRunner().invoke(cli, ["policy", "check", "gone.yaml"], color=True)
        assert ("\x1b" in result.stderr) is coloured
