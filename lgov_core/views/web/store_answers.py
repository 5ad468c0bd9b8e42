"""Answers about tasks, rollouts, calls and texts: functions of a window, the path's parameters and the query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from lgov_core.views.attempt_builder import read_attempt
from lgov_core.views.attempt_view import AttemptView
from lgov_core.views.pages.decisions import decision_choices
from lgov_core.views.pages.lists import group_page, rollout_page
from lgov_core.views.pages.texts import MOST, read_text
from lgov_core.views.pages.timeline import MOST_STEPS, timeline
from lgov_core.views.pages.token_columns import MOST_TOKENS, token_columns
from lgov_core.views.pages.trained import Trained
from lgov_core.views.web.errors import QueryError
from lgov_core.views.web.query import Query
from lgov_core.views.web.window import Shown, Window

Params = Mapping[str, str]
#: Farther than any position.
_FAR = 2**40


def tasks(window: Window, params: Params, query: Query) -> Any:
    """A page of groups."""
    shown = window.source(query.text("source"))
    limit, teaches = query.whole("limit", 20, 1, 50), query.choice("teaches", ("nothing", "something"))
    page = group_page(shown.store, query.filters(), teaches, query.cursor(), limit)
    for group in page["items"]:
        group["source"] = shown.source.source_id
        _name_source(group["rollouts"], shown)
    return page


def rollouts(window: Window, params: Params, query: Query) -> Any:
    """A page of rollouts."""
    shown = window.source(query.text("source"))
    limit = query.whole("limit", 50, 1, 200)
    page = rollout_page(shown.store, query.filters(), query.cursor(), limit)
    _name_source(page["items"], shown)
    return page


def rollout(window: Window, params: Params, query: Query) -> Any:
    """One attempt step by step."""
    shown = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 200, 1, MOST_STEPS)
    view = read_attempt(shown.store, params["rollout"], query.attempt())
    rewrites = shown.rewrites(view.rollout_id) if any(map(_transformed, _decisions(view))) else {}
    found = timeline(shown.store, view, _trained(shown, view), rewrites, first, count)
    return {"source": shown.source.source_id, **found}


def tokens(window: Window, params: Params, query: Query) -> Any:
    """The tokens of one call."""
    shown = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 2_000, 1, MOST_TOKENS)
    view = read_attempt(shown.store, params["rollout"], query.attempt())
    trained = _trained(shown, view)
    found = token_columns(
        shown.store, view.rollout_id, view.attempt, params["call"], trained, shown.texts, first, count
    )
    return {"source": shown.source.source_id, **found}


def text(window: Window, params: Params, query: Query) -> Any:
    """A part of a long text."""
    shown = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 100_000, 1, MOST)
    return read_text(shown.store, query.needed("ref"), first, count)


def filters(window: Window, params: Params, query: Query) -> Any:
    """What lists can be narrowed to."""
    shown = window.source(query.text("source"))
    pages = shown.store.pages
    newest = pages.marks()["calls"]
    return {
        "runs": pages.runs(200),
        "agents": sorted(pages.agents_between(newest - 5_000, newest))[:200],
        "outcomes": ["succeeded", "failed", "blocked", "infrastructure", "timeout", "truncated", "running"],
        **decision_choices(pages),
    }


def _trained(shown: Shown, view: AttemptView) -> Trained:
    """What was trained on of an attempt."""
    group = shown.store.pages.group_of(view.run_id, view.task_id)
    return shown.batches.of_attempt(shown.store, view.rollout_id, view.attempt, group)


def _decisions(view: AttemptView) -> Any:
    tools = [tool for step in view.steps for tool in step.tools]
    return [one for part in (view, *tools, *view.loose_tools) for one in part.decisions]


def _transformed(decision: Any) -> bool:
    return "transform" in (decision.effect, decision.would)


def _name_source(rows: list[dict[str, Any]], shown: Shown) -> None:
    for row in rows:
        row["source"] = shown.source.source_id


def attempt_named(window: Window, name: str) -> AttemptView:
    """The attempt that ``SOURCE~ROLLOUT~ATTEMPT`` names. Raises `LgovError`."""
    parts = [unquote(part) for part in name.split("~")]
    if len(parts) != 3 or not parts[2].isdecimal():
        raise QueryError(f"{name[:100]!r} names no attempt", hint="write SOURCE~ROLLOUT~ATTEMPT")
    return read_attempt(window.source(parts[0]).store, parts[1], int(parts[2]))
