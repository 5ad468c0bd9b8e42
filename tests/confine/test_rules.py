"""The key ``confine`` of a policy file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lgov_core.confine.plan import Outside, make_plan
from lgov_core.errors import InstrumentationError, PolicyFileError
from lgov_core.policies import load_policy_file
from lgov_core.policies.confinement import ENVIRONMENT, read_confinement
from lgov_core.policies.content.secrets import SECRET_NAMES


def policy(folder: Path, confine: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\nrules: [{{use: allow}}]\nconfine: {confine}\n")
    return path


def test_relative_paths_count_from_the_policy_file(tmp_path: Path) -> None:
    rules = read_confinement(policy(tmp_path, "{read: [data/in], write: [./out], hide: [keys/a, .env]}")).with_preset(
        None
    )
    assert rules.read == (f"{tmp_path}/data/in",)
    assert rules.write == (f"{tmp_path}/out",)
    assert rules.hide == (f"{tmp_path}/keys/a", ".env")


def test_lists_of_the_file_are_added_to_the_preset(tmp_path: Path) -> None:
    path = policy(tmp_path, "{preset: workspace, read: [/srv/data], connect: ['*.Example.org:443'], memory: 2GiB}")
    rules = read_confinement(path).with_preset(None)
    assert rules.write == (str(tmp_path),)
    assert rules.read[-1] == "/srv/data"
    assert rules.connect == ("*.example.org:443",)
    assert (rules.memory, rules.processes, rules.model) == (2 << 30, None, True)
    assert read_confinement(path).with_preset("no-network").model is False


def test_a_preset_hides_the_names_that_are_closed_for_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [name.replace("*", "x").replace("[-_]", "-") for name in SECRET_NAMES]
    for at, name in enumerate([*names, ".ENV", "server.PEM", "open.txt"]):
        (tmp_path / str(at) / name).parent.mkdir(parents=True)
        (tmp_path / str(at) / name).write_text("x")
    found = read_confinement(policy(tmp_path, "{preset: workspace}"))
    plan = make_plan(found.with_preset(None), found, Outside(tmp_path / ".lgov" / "audit.db", "/nowhere"))
    shown = [path for path in tmp_path.rglob("*") if path.is_file() and plan.access(str(path))[0] != "hidden"]
    assert [path.name for path in shown] == ["policy.yaml", "open.txt"]


MISTAKES = {
    "{wirte: [a]}": "did you mean write",
    "{preset: workspce}": "did you mean workspace",
    "{read: data}": "write a list of files",
    "{write: ['/']}": "the root folder",
    "{write: ['~']}": "the whole home folder",
    "{read: ['*.py']}": "globs are for names in hide",
    "{connect: [example.com]}": "write host:port",
    "{connect: ['example.com:0']}": "write host:port",
    "{connect: ['*:443']}": "write host:port",
    "{memory: much}": "as in 2GiB",
    "{processes: 0}": "as in 64",
    "{model: 1}": "write true or false",
    "{environment: HOME}": "write a list of names",
    "{environment: [1]}": "write a name",
    "{memory: 0GiB}": "as in 2GiB",
    "{cpu: true}": "as in 64",
    "{files: 2GiB}": "as in 64",
    "{hide: [' ']}": "write a path",
    "[a]": "is not a mapping",
}


@pytest.mark.parametrize("confine", MISTAKES)
def test_a_mistake_is_an_error_with_its_line(confine: str, tmp_path: Path) -> None:
    path = policy(tmp_path, confine)
    for load in (load_policy_file, read_confinement):
        with pytest.raises(PolicyFileError, match=r"policy\.yaml:3: confine: ") as raised:
            load(path)
        assert MISTAKES[confine] in str(raised.value)


def test_without_the_key_a_preset_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrules: [{use: allow}]\n")
    with pytest.raises(PolicyFileError, match="--preset workspace"):
        read_confinement(path).with_preset(None)
    assert read_confinement(path).with_preset("workspace").write == (str(tmp_path),)


def test_the_digest_is_that_of_the_loaded_policies(tmp_path: Path) -> None:
    path = policy(tmp_path, "{preset: workspace}")
    assert read_confinement(path).digest == load_policy_file(path).digest


def test_a_link_that_code_in_a_box_may_have_made_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    (work / ".git").mkdir(parents=True)
    (work / "scripts").mkdir()
    secret.mkdir()
    monkeypatch.chdir(work)
    found = read_confinement(policy(work, "{preset: workspace, write: [out], read: [data]}"))
    (work / "out").mkdir()

    def plan() -> None:
        make_plan(found.with_preset(None), found, Outside(work / ".lgov" / "audit.db", ""))

    (work / ".git" / "hooks").symlink_to("../scripts")
    plan()
    for place in (".git/hooks", "lgov.toml", "data", "out"):
        (work / place).rmdir() if place == "out" else (work / place).unlink(missing_ok=True)
        (work / place).symlink_to(secret)
        with pytest.raises(InstrumentationError, match=f"work/{place} is a symbolic link to {secret}"):
            plan()
        (work / place).unlink()


def test_a_box_gets_the_variables_that_programs_need_and_those_of_the_file(tmp_path: Path) -> None:
    def variables(confine: str) -> tuple[str, ...]:
        return read_confinement(policy(tmp_path, confine)).with_preset(None).environment

    assert variables("{preset: workspace}") == ENVIRONMENT
    assert variables("{preset: no-network}") == ENVIRONMENT
    assert variables("{environment: []}") == ENVIRONMENT
    assert variables("{preset: offline-tests, environment: [APP_TOKEN, 'X_*']}") == (*ENVIRONMENT, "APP_TOKEN", "X_*")
