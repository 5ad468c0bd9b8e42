"""The answers of the API: functions of a window, the path's parameters and the query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import lgov_core
from lgov_core.errors import LgovError
from lgov_core.views.attempt_builder import read_attempt
from lgov_core.views.attempt_view import AttemptView
from lgov_core.views.pages.comparison import proposed_pairs
from lgov_core.views.pages.decisions import COLUMNS, decision_choices, decision_counts, decision_page
from lgov_core.views.pages.lists import group_page, rollout_page
from lgov_core.views.pages.sources import unreadable
from lgov_core.views.pages.timeline import MOST, MOST_STEPS, parting, read_text, timeline
from lgov_core.views.pages.tokens import MOST_TOKENS, token_columns
from lgov_core.views.pages.training import Trained, run_figures, run_summary
from lgov_core.views.web.protocol import Query, QueryError
from lgov_core.views.web.window import Shown, Window

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


def rollout(window: Window, params: Params, query: Query) -> Any:
    """One attempt step by step."""
    source = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 200, 1, MOST_STEPS)
    view = read_attempt(source.store, params["rollout"], query.attempt())
    rewrites = source.rewrites(view.rollout_id) if any(map(_transformed, _decisions(view))) else {}
    page = timeline(source.store, view, _trained(source, view), rewrites, first, count)
    return {"source": source.source.source_id, **page}


def tokens(window: Window, params: Params, query: Query) -> Any:
    """The tokens of one call."""
    source = window.source(query.text("source"))
    first, count = query.whole("from", 0, 0, _FAR), query.whole("count", 2_000, 1, MOST_TOKENS)
    view = read_attempt(source.store, params["rollout"], query.attempt())
    trained = _trained(source, view)
    columns = token_columns(
        source.store, view.rollout_id, view.attempt, params["call"], trained, source.texts, first, count
    )
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


def _trained(opened: Shown, view: AttemptView) -> Trained:
    """The transitions of an attempt that were trained on."""
    group = opened.store.pages.group_of(view.run_id, view.task_id)
    return opened.batches.of_attempt(opened.store, view.rollout_id, view.attempt, group)


def _decisions(view: AttemptView) -> Any:
    tools = [tool for step in view.steps for tool in step.tools]
    return [decision for holder in (view, *tools, *view.loose_tools) for decision in holder.decisions]


def _transformed(decision: Any) -> bool:
    return "transform" in (decision.effect, decision.would)


def _name_source(rows: list[dict[str, Any]], opened: Shown) -> None:
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


def _run(opened: Shown) -> dict[str, Any]:
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
