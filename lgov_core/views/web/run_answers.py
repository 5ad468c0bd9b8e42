"""Answers about sources, runs, comparisons and governance: functions of a window, the path's parameters and the query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import lgov_core
from lgov_core.errors import LgovError
from lgov_core.views.pages.comparison import proposed_pairs
from lgov_core.views.pages.decisions import COLUMNS, decision_counts, decision_page
from lgov_core.views.pages.open_source import unreadable
from lgov_core.views.pages.parting import parting
from lgov_core.views.pages.training_figures import run_figures, run_summary
from lgov_core.views.web.query import Query
from lgov_core.views.web.store_answers import attempt_named
from lgov_core.views.web.window import Shown, Window

Params = Mapping[str, str]
_EFFECTS = ("allow", "warn", "transform", "escalate", "deny", "blocked", "would")
_CHANGES = ("fixed", "broken", "better", "worse", "same")


def sources(window: Window, params: Params, query: Query) -> Any:
    """What is open."""
    return {
        "version": lgov_core.__version__,
        "title": window.title,
        "sources": [shown.describe() for shown in window.sources()],
    }


def runs(window: Window, params: Params, query: Query) -> Any:
    """A line for each source."""
    return {"items": [_run(shown) for shown in window.sources()]}


def _run(shown: Shown) -> dict[str, Any]:
    about = shown.describe()
    try:
        summary = run_summary(shown.source.folder)
    except LgovError as error:
        summary = run_summary(None)
        about |= unreadable(error)
    return {
        "source": about["id"],
        **{name: about[name] for name in ("name", "state", "error", "runs", "last_write_at")},
        "rollouts": about["counts"]["rollouts"],
        "started_at": shown.started_at(),
        **summary,
    }


def run(window: Window, params: Params, query: Query) -> Any:
    """The figures of a run over its updates."""
    shown = window.source(params["source"])
    return {"source": shown.source.source_id, **run_figures(shown.source.folder, query.whole("after", -1, 0, 2**40))}


def sides(window: Window, params: Params, query: Query) -> Any:
    """What can be compared."""
    found = window.sides()
    return {"sides": [asdict(side) for side in found], "pairs": proposed_pairs(found)}


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
    shown = window.source(query.text("source"))
    by = query.choice("by", COLUMNS, "policy") or "policy"
    return decision_counts(shown.store.pages, by)


def decisions(window: Window, params: Params, query: Query) -> Any:
    """A page of decisions."""
    shown = window.source(query.text("source"))
    wanted = {name: value for name in COLUMNS if (value := query.text(name)) is not None}
    effect = query.choice("effect", _EFFECTS)
    return decision_page(shown.store.pages, effect, wanted, query.cursor(), query.whole("limit", 50, 1, 200))


def audit(window: Window, params: Params, query: Query) -> Any:
    """The state of the audit record."""
    return window.source(query.text("source")).audit.answer(again=query.flag("again"))


def policies(window: Window, params: Params, query: Query) -> Any:
    """The policy files that may be replayed."""
    files = window.source(query.text("source")).replay.files()
    return {"items": [{"name": name, "path": str(path)} for name, path in files.items()]}


def replayed(window: Window, params: Params, query: Query) -> Any:
    """What a policy file would have decided."""
    shown = window.source(query.text("source"))
    first, limit = query.whole("cursor", 0, 0, 2**40), query.whole("limit", 50, 1, 200)
    return shown.replay.answer(query.needed("policy"), shown.store, first, limit, again=query.flag("again"))


def doctor(window: Window, params: Params, query: Query) -> Any:
    """Named findings about a run."""
    return window.source(query.text("source")).diagnosis.answer()
