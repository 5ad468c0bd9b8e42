"""`lgov policy explain --path/--host`: what a box would allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.commands.group import Exit
from lgov_core.confine.proxy import make_reach
from lgov_core.policies.confinement import ConfineRules


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/v1")
    (tmp_path / ".env").write_text("SECRET")
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\nrules: [{use: allow}]\nconfine: {preset: workspace, connect: ['*.example.org:443', 'a.example:80']}\n"
    )
    return path


@pytest.mark.parametrize(
    ("asked", "access"),
    [
        (("--access", "made.txt"), "write"),
        (("--access", "policy.yaml"), "read"),
        (("--access", ".env"), "hidden"),
        (("--access", ".lgov/audit.db"), "hidden"),
        (("--access", "/usr/bin/git"), "read"),
        (("--access", "/etc/shadow"), "not there"),
        (("--access", "~/.ssh/id_rsa"), "not there"),
        (("--access", "docs.example.org:443"), "connect"),
        (("--access", "example.org:443"), "denied"),
        (("--access", "docs.example.org:80"), "denied"),
        (("--access", "a.example:80"), "connect"),
        (("--access", "models.example:443"), "connect"),
        (("--access", "models.example:443", "--preset", "no-network"), "denied"),
    ],
)
def test_it_says_what_the_box_allows(asked: tuple[str, ...], access: str, policy: Path) -> None:
    arguments = [str(Path(one).expanduser()) if one.startswith("~") else one for one in asked]
    done = CliRunner().invoke(cli, ["policy", "explain", str(policy), *arguments])
    assert done.output.startswith(f"{access}: "), done.output
    assert done.exit_code == (Exit.OK if access in ("write", "read", "connect") else Exit.DENIED)


def test_one_question_at_a_time(policy: Path) -> None:
    assert CliRunner().invoke(cli, ["policy", "explain", str(policy)]).exit_code == Exit.USAGE


def test_loopback_places_are_forwarded() -> None:
    rules = ConfineRules(connect=("localhost:5432", "example.com:443"))
    reach = make_reach(rules, [("OPENAI_BASE_URL", "http://127.0.0.1:8321/v1"), ("x", "https://[2001:db8::1]/v1")])
    assert reach.forwards() == (5432, 8321)
    assert reach.rule("[2001:db8::1]", 443) is not None
    assert make_reach(ConfineRules(model=False), [("x", "http://127.0.0.1:1")]).forwards() == ()
