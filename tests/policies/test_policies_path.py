"""PathPolicy on a real file system."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

import pytest

from lgov_core.errors import PolicyDenied, PolicyError, PolicyFileError
from lgov_core.policies import PathPolicy, load_policies
from lgov_core.types import Action, Point


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print()")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("s")
    return folder


def rule(policy: PathPolicy, text: str) -> str:
    decision = policy.judge_path(text)
    return decision.rule if decision.blocks else "allow"


def test_links_are_followed_wherever_they_stand(root: Path, tmp_path: Path) -> None:
    policy = PathPolicy(roots=[str(root)])
    (root / "file-link").symlink_to(tmp_path / "outside" / "secret.txt")
    (root / "folder-link").symlink_to(tmp_path / "outside")
    (root / "relative-link").symlink_to("../outside")
    (root / "good-link").symlink_to("src/main.py")
    (root / "chain").symlink_to("folder-link")
    for text in ("file-link", "folder-link/secret.txt", "relative-link/secret.txt", "chain/new/not-there.txt", "chain"):
        assert rule(policy, text) == "path-outside", text
    assert rule(policy, "good-link") == "allow"
    assert policy.resolve("good-link") == (root / "src" / "main.py").resolve()


def test_dots_behind_a_link_count_from_where_it_leads(root: Path, tmp_path: Path) -> None:
    (root / "deep").mkdir()
    (root / "deep" / "up").symlink_to(tmp_path / "outside")
    assert rule(PathPolicy(roots=[str(root)]), "deep/up/../secret.txt") == "path-outside"


def test_a_link_that_leads_nowhere_yet_is_judged_by_where_it_leads(root: Path, tmp_path: Path) -> None:
    policy = PathPolicy(roots=[str(root)])
    (root / "later").symlink_to(tmp_path / "outside" / "not-there-yet")
    (root / "within").symlink_to("src/not-there-yet")
    assert rule(policy, "later") == "path-outside"
    assert rule(policy, "within") == "allow"


def test_links_in_circles_are_denied(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert rule(PathPolicy(roots=[str(root)]), "a") == "path-outside"


def test_links_into_the_kernel_are_denied_even_where_they_lead_back_inside(root: Path) -> None:
    (root / "self").symlink_to(f"/proc/self/root{root}/src/main.py")
    (root / "cwd").symlink_to("/proc/self/cwd")
    policy = PathPolicy(roots=[str(root)])
    assert rule(policy, "self") == "path-outside"
    assert rule(policy, "cwd") == "path-outside"


def test_a_link_made_after_the_policy_is_seen(root: Path, tmp_path: Path) -> None:
    policy = PathPolicy(roots=[str(root)])
    assert rule(policy, "src/main.py") == "allow"
    (root / "src").rename(root / "kept")
    (root / "src").symlink_to(tmp_path / "outside")
    assert rule(policy, "src/main.py") == "path-outside"


def test_a_root_may_be_a_link_and_may_be_missing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "door").symlink_to(root)
    through = PathPolicy(roots=[str(tmp_path / "door")])
    assert rule(through, "src/main.py") == "allow"
    assert rule(through, str(root / "src" / "main.py")) == "allow"
    assert rule(through, str(tmp_path / "outside" / "secret.txt")) == "path-outside"
    later = PathPolicy(roots=[str(tmp_path / "later")])
    assert rule(later, "new.txt") == "allow"
    (tmp_path / "later").symlink_to(tmp_path / "outside")
    assert rule(later, "secret.txt") == "allow", "the root itself is what its author says it is"


def test_relative_paths_count_from_cwd(root: Path) -> None:
    inner = PathPolicy(roots=[str(root / "src")], cwd=str(root))
    assert rule(inner, "main.py") == "path-outside"
    assert rule(inner, "src/main.py") == "allow"


def test_pipes_and_sockets_are_no_files(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(root)  # the name of a socket has little room
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        policy = PathPolicy(roots=[str(root)])
        assert rule(policy, "pipe") == "path-denied"
        assert rule(policy, "socket") == "path-denied"


def test_names_that_stay_closed_are_closed_through_links_too(root: Path) -> None:
    (root / ".env").write_text("KEY=1")
    (root / "settings.txt").symlink_to(".env")
    assert rule(PathPolicy(roots=[str(root)]), "settings.txt") == "path-denied"
    assert rule(PathPolicy(roots=[str(root)], deny=[]), "settings.txt") == "allow"
    own = PathPolicy(roots=[str(root)], deny=["*.PEM", "src/private"])
    assert rule(own, "x/key.pem") == "path-denied"
    assert rule(own, "src/private/x") == "path-denied"
    assert rule(own, "private/x") == "allow"


@pytest.mark.parametrize(
    "text",
    [
        ".env",
        "prod.env",
        "deploy/App.Env",
        "%2eenv",
        "%252eenv",
        "src/.e%6ev",
        "id_rsa",
        "server.key",
        "tls-key.pem",
        "privkey1.pem",
        "x/_netrc",
        "secrets.yaml",
        "x-credentials.json",
        "keys/server.pem",
        "kubeconfig",
    ],
)
def test_names_that_stay_closed_unless_the_author_says_otherwise(root: Path, text: str) -> None:
    assert rule(PathPolicy(roots=[str(root)]), text) == "path-denied"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GIT~1/config", "path-windows"),
        ("src/PROGRA~2.TXT", "path-windows"),
        ("release.keystore", "path-denied"),
        ("keys/private-2024.pem", "path-denied"),
        ("notes.txt~", "allow"),
        ("longer-name~1", "allow"),
        ("keystore.py", "allow"),
    ],
)
def test_short_names_and_more_files_with_keys(root: Path, text: str, expected: str) -> None:
    assert rule(PathPolicy(roots=[str(root)]), text) == expected


@pytest.mark.parametrize(
    "text", ["id_rsa.pub", "id_ed25519.pub", ".env.example", "app.example.env", "cert.pem", "keys.md", "50%25.txt"]
)
def test_names_that_only_look_like_closed_ones_are_open(root: Path, text: str) -> None:
    assert rule(PathPolicy(roots=[str(root)]), text) == "allow"


def test_a_link_that_a_tool_reaches_by_decoding_the_path_is_followed(root: Path, tmp_path: Path) -> None:
    (root / "door").symlink_to(tmp_path / "outside")
    (root / "of\ufb01ce").mkdir()
    (root / "office").symlink_to(tmp_path / "outside")
    policy = PathPolicy(roots=[str(root)])
    assert rule(policy, "doo%72/secret.txt") == "path-outside"
    assert rule(policy, "of\ufb01ce/secret.txt") == "path-outside", "the same name once normalised"


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f468\u200d\U0001f4bb.txt",
        "\U0001f3f3\ufe0f\u200d\U0001f308.md",
        "\u0645\u06cc\u200c\u0631\u0648\u0645.txt",
        "\u0915\u094d\u200d\u0937.txt",
    ],
)
def test_joiners_that_a_script_or_an_emoji_needs_are_no_hidden_characters(root: Path, text: str) -> None:
    assert rule(PathPolicy(roots=[str(root)]), text) == "allow"


@pytest.mark.parametrize(
    "text", [".e\u200dnv", "a\u200d/b", "\u200dsrc", "s\u200crc", "src\u200d", "\u0430\u200d\u0431"]
)
def test_joiners_elsewhere_are_hidden_characters(root: Path, text: str) -> None:
    assert rule(PathPolicy(roots=[str(root)]), text) == "path-characters"


def test_joiners_do_not_open_a_closed_name(root: Path) -> None:
    policy = PathPolicy(roots=[str(root)], deny=["\u0645\u06cc\u0631\u0648\u0645"])
    assert rule(policy, "\u0645\u06cc\u200c\u0631\u0648\u0645") == "path-denied"


def test_a_folder_that_cannot_be_looked_into_is_denied(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may look into every folder")
    (root / "closed").mkdir()
    (root / "closed").chmod(0)
    try:
        assert rule(PathPolicy(roots=[str(root)]), "closed/x") == "path-unreadable"
    finally:
        (root / "closed").chmod(0o700)


def call(**arguments: object) -> Action:
    return Action(Point.PRE_TOOL_CALL, "read", arguments=arguments)


def test_every_named_argument_is_judged_and_one_must_be_there(root: Path) -> None:
    policy = PathPolicy(roots=[str(root)], argument=["source", "target"])
    judged = policy.judge(call(source="src/a", target="../b"))
    assert judged is not None
    assert judged.rule == "path-outside"
    missing = policy.judge(call(path="/etc/passwd"))
    assert missing is not None
    assert missing.rule == "path-missing", "a path under another name is not taken for a path that was left out"
    assert policy.judge(call(source=b"src/a")).rule == "path-missing"  # type: ignore[union-attr]


def test_without_argument_the_usual_names_are_judged(root: Path) -> None:
    policy = PathPolicy(roots=[str(root)])
    assert not policy.judge(call(file_path="src/a", directory=None)).blocks  # type: ignore[union-attr]
    assert policy.judge(call(src="src/a", dest="/etc/x")).blocks  # type: ignore[union-attr]


@pytest.mark.parametrize("named", [None, "path"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ""),
        ({"path": None}, ""),
        ({"pattern": "TODO", "limit": 5}, ""),
        ({"pattern": r"def \w+\(\$"}, ""),
        ({"target": "/etc/passwd"}, "path-missing"),
        ({"target": ["src", "../../x"]}, "path-missing"),
        ({"edits": {"to": ".env"}}, "path-missing"),
        ({"path": ""}, "path-missing"),
        ({"path": 5}, "path-missing"),
        ({"cwd": "/etc"}, "path-outside"),
    ],
)
def test_a_path_that_is_left_out_is_the_folder_of_the_tool(
    root: Path, named: str | None, arguments: dict[str, object], expected: str
) -> None:
    policy = PathPolicy(roots=[str(root)], argument=named, expand="none")
    assert policy.judge(call(**arguments)).rule == expected  # type: ignore[union-attr]


def test_a_folder_outside_of_the_roots_is_no_default(root: Path) -> None:
    policy = PathPolicy(roots=[str(root / "src")], cwd=str(root))
    assert policy.judge(call()).rule == "path-outside"  # type: ignore[union-attr]
    assert PathPolicy(roots=[str(root)]).judge(call(pattern=r"\w+")).rule == "path-missing"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "routes/posts/$postId.tsx",
        "$types.d.ts",
        "Outer$Inner.class",
        "src/aux.c",
        "nul",
        "~backup",
        "~",
        "[...slug]/{a,b}.tsx",
        "what?*.md",
        "50%25.txt",
        "%2e%2e/x",
        "a`b`.txt",
        "back\\slash.txt",
    ],
)
def test_a_tool_that_expands_nothing_gets_names_as_they_are(root: Path, text: str) -> None:
    policy = PathPolicy(roots=[str(root)], expand="none")
    assert rule(policy, text) == "allow"
    assert policy.resolve(text) == root / text
    assert text == "50%25.txt" or rule(PathPolicy(roots=[str(root)]), text) != "allow", "by default a tool may expand"


def test_a_tool_that_expands_nothing_is_held_where_a_name_leads(root: Path, tmp_path: Path) -> None:
    (root / "$door").symlink_to(tmp_path / "outside")
    (root / "~key").symlink_to(".env")
    (root / "slash").symlink_to(tmp_path / "outside")
    policy = PathPolicy(roots=[str(root)], expand="none")
    expected = {
        "$door/secret.txt": "path-outside",
        "~/../../outside": "path-outside",
        "slash\\secret.txt": "path-outside",
        "..\\outside": "path-outside",
        "~key": "path-denied",
        "$x/.env": "path-denied",
        "$x/.git/config": "path-denied",
        "GIT~1/config": "path-windows",
        ".git::$INDEX_ALLOCATION": "path-windows",
        "https://example.com/$x": "path-url",
        "a\x00b": "path-characters",
        "policy.yaml": "path-governs",
    }
    (root / "policy.yaml").write_text("version: 1\n")
    assert {text: rule(policy, text) for text in expected} == expected


@pytest.mark.parametrize("expand", ["any", "none"])
def test_a_file_uri_is_the_path_in_it(root: Path, expand: Literal["any", "none"]) -> None:
    (root / "50%.txt").symlink_to("/etc/passwd")
    (root / "a file").write_text("x")
    policy = PathPolicy(roots=[str(root)], expand=expand)
    for begin in ("file://", "FILE://", "file://localhost", "file:"):
        assert rule(policy, f"{begin}{root}/src/main.py") == "allow", begin
    assert policy.resolve(f"file://{root}/a%20file") == root / "a file"
    for uri in ("file:///etc/passwd", f"file://{root}/../outside", f"file://{root}/50%25.txt"):
        assert rule(policy, uri) == "path-outside", uri
    assert rule(policy, f"file://{root}/.e%6ev") == "path-denied"
    for uri in (f"file://host{root}/x", f"file:////host{root}/x", f"file://{root}/x?y", f"file://{root}/x#y", "file:x"):
        assert rule(policy, uri) == "path-url", uri
    assert policy.judge(call(uri=f"file://{root}/x")).rule == ""  # type: ignore[union-attr]
    assert policy.judge(call(path="src", source_url="file:///etc/passwd")).rule == "path-outside"  # type: ignore[union-attr]
    assert policy.judge(call(path="src", url="https://example.com")).rule == ""  # type: ignore[union-attr]


def test_resolve_raises_what_judge_denies(root: Path) -> None:
    with pytest.raises(PolicyDenied, match="leads outside"):
        PathPolicy(roots=[str(root)]).resolve("../outside/secret.txt")


@pytest.mark.parametrize(
    "options", [{"roots": []}, {"roots": [""]}, {"roots": ["/"], "argument": []}, {"roots": ["$HOME"]}]
)
def test_settings_without_meaning_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match=r"hint|\("):
        PathPolicy(**options)  # type: ignore[arg-type]


def test_a_root_that_is_a_file_is_an_error(root: Path) -> None:
    with pytest.raises(PolicyError, match="is a file"):
        PathPolicy(roots=[str(root / "src" / "main.py")])


def test_it_loads_from_a_document(root: Path) -> None:
    made = load_policies({"version": 1, "rules": [{"use": "path", "with": {"argument": "path", "roots": [str(root)]}}]})
    assert not made.judge(call(path="src/main.py")).blocks
    with pytest.raises(PolicyFileError, match="needs roots"):
        load_policies({"version": 1, "rules": [{"use": "path"}]})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"files": [{"path": "src/a.py", "content": "x"}, {"path": "/etc/passwd"}]}, "path-outside"),
        ({"files": [{"path": "src/a.py", "content": "../../.."}]}, "allow"),
        ({"files": [{"name": "x"}]}, "path-missing"),
        ({"path": {"path": "../x"}}, "path-outside"),
        ({"path": "src/a.py", "edits": [{"file_path": "/etc/passwd", "new": "x"}]}, "path-outside"),
        ({"path": "src/a.py", "edits": [{"file_path": "src/b.py", "new": "/etc/passwd"}]}, "allow"),
        ({"path": "src/a.py", "edits": [{"file_path": 5}]}, "path-missing"),
        ({"path": "a.json", "patch": [{"op": "remove", "path": "/a/b"}]}, "allow"),
        ({"path": "a.txt", "options": {"path": "/etc/x"}}, "path-outside"),
        ({"path": "a.txt", "options": {"more": [{"output_path": "/etc/x"}]}}, "path-outside"),
        ({"path": "a.txt", "options": {"path": "b.txt", "source": "/not/a/path"}}, "allow"),
        ({"path": ["a.txt"], "cwd": "/etc"}, "path-outside"),
        ({"path": "../../a.txt", "cwd": "src"}, "path-outside"),
        ({"path": "a.txt", "working_directory": "src"}, "allow"),
        ({"path": "a.txt", "cwd": None}, "allow"),
        ({"path": "a.txt", "log_file": "/etc/x"}, "path-outside"),
        ({"path": "a.txt", "opts": {"out": {"savePath": "/etc/x"}}}, "path-outside"),
        ({"path": "a.txt", "base_path": "/etc"}, "path-outside"),
        ({"path": "../a.txt", "root": "src/.."}, "path-outside"),
        ({"path": "a.txt", "max_files": 3, "is_file": True, "profile": "/not/a/path"}, "allow"),
        ({"path": "a.ipynb", "cells": [{"source": "cat /etc/passwd"}]}, "allow"),
        ({"operations": [{"file": "../x"}]}, "path-outside"),
    ],
)
def test_paths_in_lists_of_mappings_are_judged(root: Path, arguments: dict[str, object], expected: str) -> None:
    decision = PathPolicy(roots=[str(root)]).judge(Action(Point.PRE_TOOL_CALL, "edit", arguments=arguments))
    assert decision is not None
    assert (decision.rule or "allow") == expected
