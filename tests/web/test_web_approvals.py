"""Approvals in the browser: the exact arguments, an answer, and two windows that answer the same call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.server import EndpointServer
from lgov_core.policies import ApprovalPolicy, ApprovalRequests
from lgov_core.types import Action, Effect, Point
from lgov_core.views.web.app import MountedWindow
from lgov_core.views.web.window import Window, WindowOptions
from tests.web.browser import expect
from tests.web.recorded_run import ask_for_approval, make_run
from tests.web.served import Served, served

ARGUMENTS = {"to": "Ann", "amount": 12345678901234567890, "note": "pay \u202e001 now <b>"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    ask_for_approval(tmp_path / "run", ARGUMENTS)
    return tmp_path / "run"


@pytest.fixture
def window(folder: Path) -> Iterator[Served]:
    with served(folder) as opened:
        yield opened


def states(folder: Path) -> list[str]:
    with closing(ApprovalRequests(folder / "approvals.sqlite")) as requests:
        return [str(one.state) for one in requests.all()]


def test_the_arguments_are_shown_exactly_as_they_are_bound(window: Served, page: Any) -> None:
    window.open(page, "#/approvals")
    bound = page.get_by_label("bound arguments")
    bound.wait_for()
    assert "12345678901234567890" in bound.inner_text()
    assert "\\u202e001 now <b>" in bound.inner_text()
    assert "\u202e" not in page.locator("main").inner_text()
    assert page.locator("main b").all_inner_texts() == []


def test_a_request_is_counted_in_the_navigation_of_every_page(window: Served, page: Any) -> None:
    window.open(page, "#/runs")
    expect(page.get_by_label("1 waiting")).to_be_visible()


def test_a_file_that_is_named_in_two_ways_is_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    window = Window(str(folder), WindowOptions(approvals=(Path("approvals.sqlite"),)))
    assert window.approval_files() == [folder / "approvals.sqlite"]
    window.close()


def test_an_answer_is_recorded_with_its_name_and_reason(window: Served, page: Any, folder: Path) -> None:
    window.open(page, "#/approvals")
    page.get_by_label("Your name").fill("Zoe")
    page.get_by_label("Reason").fill("not our bank")
    page.get_by_role("button", name="Reject").click()
    page.get_by_text("not our bank").wait_for()
    assert states(folder) == ["rejected"]
    page.reload()
    expect(page.get_by_role("heading", name="Nothing waits")).to_be_visible()
    page.get_by_label("show answered requests").check()
    expect(page.get_by_text("by Zoe")).to_be_visible()


def test_an_approval_lets_exactly_this_call_run(window: Served, page: Any, folder: Path) -> None:
    window.open(page, "#/approvals")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    assert states(folder) == ["approved"]


def test_of_two_windows_the_first_answer_counts(window: Served, new_page: Callable[..., Any], folder: Path) -> None:
    first, second = (window.open(new_page(), "#/approvals") for _ in range(2))
    for page in (first, second):
        page.get_by_role("button", name="Approve").wait_for()
    # The second window learns of nothing before it answers.
    second.route("**/api/changes**", lambda route: route.abort())
    second.route("**/api/approvals", lambda route: route.abort())
    second.route("**/api/approvals?**", lambda route: route.abort())
    first.get_by_role("button", name="Reject").click()
    expect(first.get_by_role("button", name="Approve")).to_have_count(0)
    second.get_by_role("button", name="Approve").click()
    second.get_by_role("alert").first.wait_for()
    expect(second.get_by_role("button", name="Approve")).to_have_count(0)
    assert states(folder) == ["rejected"]


def test_without_a_session_nothing_can_be_answered(window: Served, page: Any, folder: Path) -> None:
    page.goto(window.base + "#/approvals")
    page.get_by_role("alert").wait_for()
    answer = page.request.post(window.base + "api/approvals/1", data={"answer": "approve"})
    assert answer.status in (401, 403)
    assert states(folder) == ["pending"]


def test_an_admin_key_opens_the_window_and_answers(folder: Path, page: Any) -> None:
    keys = KeyRing(b"a secret of sixteen bytes or more")
    mounted = MountedWindow(Window(str(folder)), say=lambda _: None)
    with closing(mounted), EndpointServer(Starlette(routes=[Mount(mounted.path, mounted.app(keys))])) as server:
        page.goto(f"{server.url}{mounted.path}/#/approvals")
        field = page.get_by_label("Or an admin key")
        for key, there in ((keys.issue("ro_mixed0", 1), 1), (keys.admin, 0)):
            field.fill(key)
            page.get_by_role("button", name="Open").click()
            expect(page.get_by_text("not an admin key")).to_have_count(there)
        page.get_by_label("Your name").fill("Zoe")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert states(folder) == ["approved"]


def test_two_people_in_two_browsers_approve_one_call_and_the_requester_cannot(
    folder: Path, new_page: Callable[..., Any]
) -> None:
    place = folder / "approvals.sqlite"
    policy = ApprovalPolicy(["pay"], store=place, approvers=2, question="Pay $euros euros?")
    ada, bob, tom = (policy.requests.add_approver(name) for name in ("ada", "bob", "tom"))
    action = Action(
        Point.PRE_TOOL_CALL,
        "pay",
        arguments={"euros": 7},
        rollout_id="ro_mixed0",
        context={"user": "tom", "user_text": "Pay."},
    )
    policy.judge(action)
    request = next(one for one in policy.pending() if one.name == "pay")
    link = f"#/approvals/{request.request_id}"

    def opens(page: Any, key: str) -> Any:
        """Follows the link, which asks for a key, and gives one."""
        page.goto(window.base + link)
        expect(page.get_by_role("heading", name="Pay 7 euros?")).to_have_count(0)
        page.get_by_label("an approver's key").fill(key)
        page.get_by_role("button", name="Open").click()
        return page

    with served(folder) as window:
        first = opens(new_page(), "lgov_approver_stolen")
        expect(first.get_by_text("nor the key of an approver")).to_be_visible()
        requester, first, second = (opens(new_page(), key) for key in (tom, ada, bob))
        card = first.get_by_role("listitem")
        expect(card.get_by_role("heading", name="Pay 7 euros?")).to_be_visible()
        expect(card).to_have_count(1)
        expect(card).to_contain_text("the user's request")
        expect(card).to_contain_text("user tom")
        expect(first.get_by_label("Your name")).to_have_value("ada")
        expect(first.get_by_role("link", name="ro_mixed0")).to_be_visible()
        requester.get_by_role("button", name="Approve").click()
        expect(requester.get_by_role("alert")).to_contain_text("tom asks for this call")
        first.get_by_role("button", name="Approve").click()
        expect(card).to_contain_text("1 of 2")
        second.get_by_role("button", name="Approve").click()
        expect(second.get_by_role("button", name="Approve")).to_have_count(0)
    decision = policy.judge(action)
    assert decision is not None
    assert decision.effect is Effect.ALLOW
    assert [one.by for one in policy.requests.all()[-1].answers] == ["ada", "bob"]


def test_the_cookie_is_not_for_scripts_nor_for_other_sites(window: Served, page: Any) -> None:
    window.open(page)
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/view/")
    assert page.evaluate("document.cookie") == ""
    assert "token" not in page.url


def test_the_page_allows_no_code_but_its_own_files(window: Served, page: Any) -> None:
    headers = page.goto(window.base).headers
    policy = {
        part.split()[0]: part.split()[1:] for part in headers["content-security-policy"].split(";") if part.strip()
    }
    assert policy["default-src"] == ["'none'"]
    assert policy["script-src"] == ["'self'"]
    assert policy["style-src"] == ["'self'"]
    assert policy["frame-ancestors"] == ["'none'"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
