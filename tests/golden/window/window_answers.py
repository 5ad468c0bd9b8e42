"""Every answer of the window's API about a store, and what the store itself counts, as JSON values that can be compared.

What is left out or put in order depends on the clock, on the machine, or on what has no order of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

from lgov_core.commands.export import json_lines, reader_of
from lgov_core.errors import LgovError
from lgov_core.store import RolloutQueue
from lgov_core.views.attempt_builder import first_denied, read_attempt
from lgov_core.views.web.app import ANSWERS
from lgov_core.views.web.protocol import Query
from lgov_core.views.web.window import Window

LISTS: Final = (
    *("rollouts", "rollouts?limit=200", "rollouts?run=run-a", "rollouts?run=run-b&limit=7", "rollouts?task=train-3"),
    *(f"rollouts?outcome={name}" for name in ("succeeded", "failed", "blocked", "timeout", "running", "unknown")),
    *(
        "rollouts?agent=desk",
        "rollouts?agent=nobody",
        "rollouts?denied=1",
        "rollouts?denied=0",
        "rollouts?denied=would",
    ),
    *("rollouts?policy=tools", "rollouts?rule=limits", "rollouts?policy=budget&rule=no-drop&denied=1"),
    *("rollouts?text=question%20of%20ro-01", "rollouts?text=ghost-151", "rollouts?text=%C3%84", "rollouts?text=100%25"),
    *("rollouts?text=found&outcome=failed&run=run-a", "rollouts?policy=none"),
    *("tasks", "tasks?limit=50", "tasks?run=run-a", "tasks?run=run-b&limit=3", "tasks?teaches=nothing"),
    *("tasks?teaches=something", "tasks?denied=1", "tasks?rule=limits", "tasks?text=ro-101", "tasks?outcome=running"),
    *("tasks?task=t-2", "tasks?agent=planner&limit=5", "tasks?teaches=something&denied=1"),
    *("governance/decisions", "governance/decisions?limit=200", "governance/decisions?effect=allow"),
    *(f"governance/decisions?effect={name}" for name in ("warn", "transform", "deny", "escalate", "blocked", "would")),
    *("governance/decisions?policy=tools&rule=limits", "governance/decisions?tool=run_sql&effect=blocked"),
    *("governance/decisions?agent=desk", "governance/decisions?rule=none", "governance/decisions?tool=search&limit=9"),
)
OTHERS: Final = (
    *("sources", "runs", "filters", "compare/sides", "governance/policies"),
    *(f"governance?by={name}" for name in ("policy", "rule", "tool", "agent")),
)
_VARY: Final = {"place", "title", "version", "state", "silent_s", "last_write_at", "name", "id"}


def everything(store: RolloutQueue, place: str) -> dict[str, Any]:
    """All answers by what was asked. ``place`` is that of the store."""
    found: dict[str, Any] = {}
    window = Window(place)
    source = window.sources()[0].source.source_id
    try:
        for path in LISTS:
            found[path] = _list(path, list(_walk(window, path)))
        for path in OTHERS:
            found[path] = _normal(_ask(window, path))
        rollouts = sorted({row["rollout_id"] for row in found["rollouts"]})
        for rollout_id in rollouts:
            found[f"rollouts/{rollout_id}"] = shown = _normal(_ask(window, f"rollouts/{rollout_id}"))
            for step in shown.get("steps", ())[:2]:
                if step["has_tokens"]:
                    path = f"rollouts/{rollout_id}/calls/{quote(step['call'], safe='')}/tokens"
                    found[path] = _normal(_ask(window, path, rollout=rollout_id, call=step["call"]))
        found["rollouts/ro-000?attempt=1"] = _normal(_ask(window, "rollouts/ro-000?attempt=1"))
        for pair in _ask(window, "compare/sides")["pairs"][:3]:
            found[f"compare {pair}"] = _normal(_ask(window, "compare", **pair))
        found["text"] = _ask(window, "text", ref="ro-010~1~input")
    finally:
        window.close()
    begun = [one for one in rollouts if "steps" in found[f"rollouts/{one}"]]
    found["attempts"] = {one: _view(asdict(read_attempt(store, one))) for one in begun}
    found["first denied"] = first_denied(store)
    found["statistics"] = {
        name: value
        for name, value in asdict(store.statistics()).items()
        if name not in ("size_bytes", "free_bytes", "queue")
    }
    found["export"] = {
        kind: hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() for kind, lines in _lines(store).items()
    }
    found["prune"] = {
        name: asdict(store.prune(**choice, dry_run=True))
        for name, choice in {
            "run": {"run_id": "run-b"},
            "no run": {"run_id": ""},
            "before": {"before": 1_795_506_000.0},
            "keep": {"keep_last": 20},
        }.items()
    }
    return json.loads(json.dumps(found).replace(f"{source}~", "SOURCE~"))


def _lines(store: RolloutQueue) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in json_lines(reader_of(store, content=True)):
        found.setdefault(json.loads(line)["kind"], []).append(line)
    return found


def _ask(window: Window, path: str, **more: str) -> Any:
    """The answer to a path, counted to its end."""
    name, _, query = path.partition("?")
    given = dict(one.split("=", 1) for one in query.split("&") if one) | more
    given = {key: _unquoted(value) for key, value in given.items()}
    params: dict[str, str] = {}
    if name.endswith("/tokens"):
        name, params = (
            "rollouts/{rollout:path}/calls/{call:path}/tokens",
            {key: given.pop(key) for key in ("rollout", "call")},
        )
    elif name.startswith("rollouts/"):
        name, params = "rollouts/{rollout:path}", {"rollout": name.removeprefix("rollouts/")}
    while True:
        try:
            answer = ANSWERS[name](window, params, Query(given))
        except LgovError as error:
            return {"error": str(error)}
        counted = answer.get("progress") or {"done": 0, "total": 0}
        if counted["done"] >= counted["total"]:
            return answer


def _unquoted(value: str) -> str:
    from urllib.parse import unquote

    return unquote(value)


def _walk(window: Window, path: str) -> Iterator[Any]:
    """The items of all pages."""
    cursor: str | None = ""
    while cursor is not None:
        page = _ask(window, path, **({"cursor": cursor} if cursor else {}))
        yield from page["items"]
        cursor = page["cursor"]


def _list(path: str, items: list[Any]) -> list[Any]:
    """A list; rollouts that nobody added stood last before format 5, so that lists with such are put in order."""
    if path.startswith("governance"):
        return [_normal(item) for item in items]
    named_only = any(item.get("outcome") == "unknown" or item.get("input", item) is None for item in items)
    return [_normal(item) for item in (sorted(items, key=_id) if named_only else items)]


def _id(item: Mapping[str, Any]) -> str:
    return str((item.get("run_id"), item.get("task_id"), item.get("rollout_id")))


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {
            name: _normal(one)
            for name, one in value.items()
            if name not in ("progress", "announced", "source", "label")
            and not (name in _VARY and "id" in value and "place" in value)
        }
        if "silent_s" in kept or "last_write_at" in kept:
            kept = {name: one for name, one in kept.items() if name not in _VARY}
        for name in ("series", "table"):  # alike ones have no order
            if isinstance(kept.get(name), list):
                count = "total" if name == "series" else "count"
                kept[name] = sorted(kept[name], key=lambda one: (-one[count], json.dumps(one, sort_keys=True)))
        for name in ("version", "title"):
            kept.pop(name, None)
        return kept
    return [_normal(one) for one in value] if isinstance(value, list | tuple) else value


def _view(view: dict[str, Any]) -> dict[str, Any]:
    return {("opened" if name == "announced" else name): value for name, value in view.items()}
