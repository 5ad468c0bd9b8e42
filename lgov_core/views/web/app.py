"""The window as an ASGI application, mounted under `PATH` on an endpoint or on a port of its own, and the answers of its API.

An answer that only reads is a function of a window, the path's parameters and the query (`ANSWERS`).
"""

from __future__ import annotations

import getpass
import json
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

import lgov_core
from lgov_core.errors import LgovError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.operation import log_failure
from lgov_core.gateway.protocol import Attribution
from lgov_core.gateway.server import EndpointServer, served_alone
from lgov_core.policies.approvals.answers import KEY_PREFIX
from lgov_core.views.agent_runs import run_page
from lgov_core.views.attempt_builder import read_attempt
from lgov_core.views.attempt_view import AttemptView
from lgov_core.views.governance import (
    COLUMNS,
    AnsweredRequest,
    answer_approval,
    decision_choices,
    decision_counts,
    decision_page,
    list_approvals,
)
from lgov_core.views.lists import group_page, proposed_pairs, rollout_page
from lgov_core.views.sources import unreadable
from lgov_core.views.timeline import MOST, MOST_STEPS, parting, read_text, timeline
from lgov_core.views.training import MOST_TOKENS, Trained, run_figures, run_summary, token_columns
from lgov_core.views.web.protocol import (
    NoSessionError,
    Query,
    QueryError,
    SafeHeaders,
    WindowAccess,
    error_answer,
    json_answer,
    json_body,
)
from lgov_core.views.web.window import LONGEST_WAIT_S, Changes, CheckedSource, Window

_LOG = logging.getLogger("lgov.window")
Params = Mapping[str, str]
#: Farther than any position.
_FAR = 2**40


def tasks(window: Window, params: Params, query: Query) -> Any:
    """A page of groups."""
    source = window.source(query.text("source"))
    limit, teaches = query.whole("limit", 20, 1, 50), query.choice("teaches", ("nothing", "something"))
    page = group_page(source.store, query.filters(), teaches, query.cursor(), limit)
    for group in page["items"]:
        group["source"] = source.source.source_id
        _name_source(group["rollouts"], source)
    return page


def rollouts(window: Window, params: Params, query: Query) -> Any:
    """A page of rollouts."""
    source = window.source(query.text("source"))
    limit = query.whole("limit", 50, 1, 200)
    page = rollout_page(source.store, query.filters(), query.cursor(), limit)
    _name_source(page["items"], source)
    return page


def agent_runs(window: Window, params: Params, query: Query) -> Any:
    """A page of runs of the agent: rollouts with what was asked and answered, and what it cost."""
    source = window.source(query.text("source"))
    limit = query.whole("limit", 20, 1, 50)
    page = run_page(source.store, query.filters(), query.cursor(), limit, window.prices())
    _name_source(page["items"], source)
    return page


def rollout(window: Window, params: Params, query: Query) -> Any:
    """One attempt step by step."""
    source = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 200, 1, MOST_STEPS)
    view = read_attempt(source.store, params["rollout"], query.attempt())
    transformed = any("transform" in (decision.effect, decision.would) for decision in view.all_decisions)
    rewrites = source.rewrites(view.rollout_id) if transformed else {}
    page = timeline(source.store, view, _trained(source, view), rewrites, first, count, query.text("conversation"))
    return {"source": source.source.source_id, **page}


def tokens(window: Window, params: Params, query: Query) -> Any:
    """The tokens of one call."""
    source = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 2_000, 1, MOST_TOKENS)
    view = read_attempt(source.store, params["rollout"], query.attempt())
    columns = token_columns(source.store, view, params["call"], _trained(source, view), source.texts, first, count)
    return {"source": source.source.source_id, **columns}


def text(window: Window, params: Params, query: Query) -> Any:
    """A part of a long text."""
    source = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 100_000, 1, MOST)
    return read_text(source.store, query.needed("ref"), first, count)


def filters(window: Window, params: Params, query: Query) -> Any:
    """The choices of the filters."""
    source = window.source(query.text("source"))
    pages = source.store.pages
    newest = pages.marks()["calls"]
    return {
        "runs": pages.runs(200),
        "agents": sorted(pages.agents_between(newest - 5_000, newest))[:200],
        "outcomes": ["succeeded", "failed", "blocked", "infrastructure", "timeout", "truncated", "running"],
        **decision_choices(pages),
    }


def _trained(opened: CheckedSource, view: AttemptView) -> Trained:
    """The transitions of an attempt that were trained on."""
    group = opened.store.pages.group_of(view.run_id, view.task_id)
    return opened.batches.of_attempt(opened.store, view.rollout_id, view.attempt, group)


def _name_source(rows: list[dict[str, Any]], opened: CheckedSource) -> None:
    for row in rows:
        row["source"] = opened.source.source_id


def attempt_named(window: Window, name: str) -> AttemptView:
    """The attempt that ``SOURCE~ROLLOUT~ATTEMPT`` names. Raises `LgovError`."""
    parts = [unquote(part) for part in name.split("~")]
    if len(parts) != 3 or not parts[2].isdecimal():
        raise QueryError(f"{name[:100]!r} names no attempt", hint="write SOURCE~ROLLOUT~ATTEMPT")
    return read_attempt(window.source(parts[0]).store, parts[1], int(parts[2]))


_EFFECTS = ("allow", "warn", "transform", "escalate", "deny", "blocked", "would")
_CHANGES = ("fixed", "broken", "better", "worse", "same")


def sources(window: Window, params: Params, query: Query) -> Any:
    """The sources that are open."""
    return {
        "version": lgov_core.__version__,
        "title": window.title,
        "sources": [source.describe() for source in window.sources()],
    }


def runs(window: Window, params: Params, query: Query) -> Any:
    """A line for each source."""
    return {"items": [_run(source) for source in window.sources()]}


def _run(opened: CheckedSource) -> dict[str, Any]:
    about = opened.describe()
    try:
        summary = run_summary(opened.source.folder)
    except LgovError as error:
        summary = run_summary(None)
        about |= unreadable(error)
    return {
        "source": about["id"],
        **{name: about[name] for name in ("name", "state", "error", "runs", "last_write_at")},
        "rollouts": about["counts"]["rollouts"],
        "started_at": opened.started_at(),
        **summary,
    }


def run(window: Window, params: Params, query: Query) -> Any:
    """The figures of a run over its updates."""
    source = window.source(params["source"])
    return {"source": source.source.source_id, **run_figures(source.source.folder, query.whole("after", -1, 0, 2**40))}


def sides(window: Window, params: Params, query: Query) -> Any:
    """The sides of comparisons, and pairs worth looking at."""
    sides_ = window.sides()
    return {"sides": [asdict(side) for side in sides_], "pairs": proposed_pairs(sides_)}


def compared(window: Window, params: Params, query: Query) -> Any:
    """A page of a comparison."""
    only, limit = query.choice("only", _CHANGES), query.whole("limit", 50, 1, 200)
    first = query.whole("cursor", 0, 0, 2**40)
    figures, pairs = window.comparison(query.needed("a"), query.needed("b"), query.text("channel") or "task")
    kept = [pair for pair in pairs if only in (None, pair["change"])]
    last = first + limit
    return {**figures, "items": kept[first:last], "cursor": str(last) if last < len(kept) else None}


def compared_rollouts(window: Window, params: Params, query: Query) -> Any:
    """Where two attempts part."""
    return parting(attempt_named(window, query.needed("a")), attempt_named(window, query.needed("b")))


def governance(window: Window, params: Params, query: Query) -> Any:
    """Decisions over time."""
    source = window.source(query.text("source"))
    by = query.choice("by", COLUMNS, "policy") or "policy"
    return decision_counts(source.store.pages, by)


def decisions(window: Window, params: Params, query: Query) -> Any:
    """A page of decisions."""
    source = window.source(query.text("source"))
    columns = {name: value for name in COLUMNS if (value := query.text(name)) is not None}
    effect = query.choice("effect", _EFFECTS)
    return decision_page(source.store.pages, effect, columns, query.cursor(), query.whole("limit", 50, 1, 200))


def audit(window: Window, params: Params, query: Query) -> Any:
    """The state of the audit record."""
    return window.source(query.text("source")).audit.answer(again=query.flag("again"))


def policies(window: Window, params: Params, query: Query) -> Any:
    """The policy files that may be replayed."""
    files = window.source(query.text("source")).replay.files()
    return {"items": [{"name": name, "path": str(path)} for name, path in files.items()]}


def replayed(window: Window, params: Params, query: Query) -> Any:
    """The decisions that another policy file would have made."""
    source = window.source(query.text("source"))
    first, limit = query.whole("cursor", 0, 0, 2**40), query.whole("limit", 50, 1, 200)
    return source.replay.answer(query.needed("policy"), source.store, first, limit, again=query.flag("again"))


def doctor(window: Window, params: Params, query: Query) -> Any:
    """Named findings about a run."""
    return window.source(query.text("source")).diagnosis.answer()


#: Where the window is, below the address of its server.
PATH: Final = "/view"
STATIC: Final = Path(__file__).parent / "static"
_LONGEST_BODY: Final = 64 * 1024
_LONGEST_TEXT: Final = 2_000

Answer = Callable[[Window, Mapping[str, str], Query], Any]
#: Every answer that only reads, by its path below ``api/``.
ANSWERS: Final[Mapping[str, Answer]] = {
    "sources": sources,
    "runs": runs,
    "runs/{source:path}": run,
    "filters": filters,
    "tasks": tasks,
    "agent-runs": agent_runs,
    "rollouts": rollouts,
    "rollouts/{rollout:path}/calls/{call:path}/tokens": tokens,
    "rollouts/{rollout:path}": rollout,
    "text": text,
    "compare": compared,
    "compare/sides": sides,
    "compare/rollouts": compared_rollouts,
    "governance": governance,
    "governance/decisions": decisions,
    "governance/audit": audit,
    "governance/policies": policies,
    "governance/replay": replayed,
    "doctor": doctor,
}


def create_window_app(window: Window, access: WindowAccess) -> ASGIApp:
    """The application, to be mounted at `PATH`. Everything below ``api/`` needs a session; the page itself holds no data."""
    routes = _Routes(window, access)
    handlers = dict.fromkeys((LgovError, HTTPException, Exception), _on_error)
    return SafeHeaders(Starlette(routes=routes.all(), exception_handlers=handlers))


class _Routes:
    def __init__(self, window: Window, access: WindowAccess) -> None:
        self._window, self._access = window, access
        self._changes = Changes(window)

    def all(self) -> list[Route | Mount]:
        reading = [Route(f"/api/{path}", self._guarded(self._reading(answer))) for path, answer in ANSWERS.items()]
        return [
            Route("/", self._page),
            Route("/api/session", self._session, methods=["GET", "POST"]),
            Route("/api/changes", self._guarded(self._changed)),
            Route("/api/approvals", self._guarded(self._approvals)),
            Route("/api/approvals/{request_id}", self._guarded(self._answer), methods=["POST"]),
            *reading,
            Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
        ]

    def _guarded(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if not await run_in_threadpool(self._access.is_open, request):
                who = self._access.stranger(request)
                raise NoSessionError(f"{request.url.path}: {who}", hint="open the address that was printed")
            return await endpoint(request)

        return guarded

    def _reading(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        def work(params: Mapping[str, str], query: Query) -> bytes:
            return json_body(answer(self._window, params, query))

        async def endpoint(request: Request) -> Response:
            body = await run_in_threadpool(work, request.path_params, Query(request.query_params))
            return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")

        return endpoint

    async def _page(self, request: Request) -> Response:
        if (token := request.query_params.get("token")) is not None:
            answer = RedirectResponse(request.url.replace(query="").path, 303, {"Cache-Control": "no-store"})
            if (session := self._access.exchange(token)) is not None:
                self._set_cookie(request, answer, session)
            return answer
        page = (STATIC / "index.html").read_bytes()
        return Response(page, headers={"Cache-Control": "no-cache"}, media_type="text/html")

    async def _session(self, request: Request) -> Response:
        is_admin = self._access.has_admin_key(request.headers)
        key = await run_in_threadpool(self._access.approver_key, request)
        is_open = await run_in_threadpool(self._access.is_open, request)
        if request.method == "POST" and not is_admin and not key:
            raise NoSessionError(
                f"not an admin key of the endpoint, nor the key of an approver: {self._access.stranger(request)}",
                hint="lgov serve --show-admin-key prints the one, lgov approvals --key NAME makes the other",
            )
        approver = await run_in_threadpool(self._window.approver, key) if key else None
        by = approver or (_user() if is_open and not is_admin else "")
        answer = json_answer({"authenticated": is_open, "may_answer": is_open, "by": by, "approver": approver})
        if request.method == "POST":
            self._set_cookie(request, answer, self._access.new_session(key))
        return answer

    def _set_cookie(self, request: Request, answer: Response, session: str) -> None:
        path, secure = f"{request.scope.get('root_path', '')}/", request.url.scheme == "https"
        answer.set_cookie(self._access.cookie, session, path=path, httponly=True, samesite="strict", secure=secure)

    async def _changed(self, request: Request) -> Response:
        query = Query(request.query_params)
        wait_s = query.whole("wait", 0, 0, LONGEST_WAIT_S)
        return json_answer(await self._changes.answer(request.query_params.get("since"), wait_s))

    async def _approvals(self, request: Request) -> Response:
        everything = Query(request.query_params).flag("all")
        files = await run_in_threadpool(self._window.approval_files)
        items = await run_in_threadpool(list_approvals, files, everything=everything)
        owners = {
            str(file.resolve()): opened.source.source_id
            for opened in self._window.sources()
            for file in opened.source.approvals
        }
        items = [{**item, "source": owners.get(item["file"])} for item in items]
        return json_answer({"may_answer": True, "files": [str(file) for file in files], "items": items})

    async def _answer(self, request: Request) -> Response:
        fields = await _object(request)
        answer = fields.get("answer")
        if answer not in ("approve", "reject"):
            raise QueryError(f"answer is {answer!r}", hint="approve or reject")
        try:
            item = await run_in_threadpool(
                answer_approval,
                self._window.approval_files(),
                request.path_params["request_id"],
                answer,
                by=await run_in_threadpool(self._access.approver_key, request) or _name(fields),
                reason=_text(fields, "reason"),
                digest=_text(fields, "digest"),
            )
        except AnsweredRequest as error:
            return error_answer(error, item=error.item)
        return json_answer(item)


def _name(fields: Mapping[str, Any]) -> str:
    """The name in a body, which is no key: a key is sent in the header, and its name counts."""
    if (name := _text(fields, "by")).startswith(KEY_PREFIX):
        raise QueryError("by holds a key", hint="send it as Authorization: Bearer KEY")
    return name


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise QueryError(f"{name} is not a text of at most {_LONGEST_TEXT} characters")
    return value


async def _object(request: Request) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_BODY:
            raise QueryError(f"the request has more than {_LONGEST_BODY} bytes")
    try:
        value = json.loads(body)
    except ValueError as error:
        raise QueryError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise QueryError("the body is not a JSON object")
    return value


def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, LgovError):
        answer = error_answer(error)
        log_failure(error, answer.status_code, Attribution())
        return answer
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 500:
        _LOG.error("%s failed", request.url.path, exc_info=error)
    message = error.detail if isinstance(error, HTTPException) else f"{type(error).__name__}: {error}"
    code = {404: "not_found", 405: "method"}.get(status, "internal")
    return json_answer({"error": {"code": code, "message": message, "hint": None}}, status)


def _user() -> str:
    """The name to propose for an answer."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


class MountedWindow:
    """A window for an endpoint: a `lgov_core.gateway.server.MountedApp`.

    ``say`` gets the address to open, which works once, and another one as soon as it was used. With ``by_key`` the address
    alone opens nothing, so that it may stand in a log: an admin key or an approver's opens the window there.
    """

    path: str = PATH

    def __init__(self, window: Window, *, say: Callable[[str], None], by_key: bool = False) -> None:
        self._window, self._say, self._by_key = window, say, by_key
        self._access = WindowAccess()
        self.url = ""

    @property
    def address(self) -> str:
        """The address of the window on the server at ``url``."""
        return f"{self.url}{PATH}/" + ("" if self._by_key else f"?token={self._access.token}")

    def app(self, keys: KeyRing | None) -> ASGIApp:
        """The application; an admin key among ``keys`` opens it too."""
        self._access = WindowAccess(keys=keys, is_approver=self._is_approver, on_new_token=self._offer_again)
        return create_window_app(self._window, self._access)

    def _is_approver(self, key: str) -> bool:
        return self._window.approver(key) is not None

    def started(self, url: str) -> None:
        """Says the address."""
        self.url = url
        self._say(f"look at it{' with a key' if self._by_key else ''}: {self.address}")

    def close(self) -> None:
        """Closes the window's stores."""
        self._window.close()

    def _offer_again(self) -> None:
        self._say(f"for another browser: {self.address}")


@contextmanager
def served_window(
    window: Window, *, host: str, port: int, say: Callable[[str], None]
) -> Generator[tuple[EndpointServer, str]]:
    """Serves ``window`` until the block ends: the server, and the address to open. Raises `EndpointError`."""
    mounted = MountedWindow(window, say=say)
    with served_alone(mounted, host=host, port=port, announce=False) as server:
        mounted.url = server.url
        yield server, mounted.address
