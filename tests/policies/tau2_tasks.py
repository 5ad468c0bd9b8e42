"""The tasks of tau2's retail and airline domains with their ground truth, out of the package inspect_evals."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_SPEC = importlib.util.find_spec("inspect_evals")
DATA = Path(_SPEC.origin).parent / "tau2/data/domains" if _SPEC is not None and _SPEC.origin else None
#: The status of an order once a tool has changed it.
CHANGES = {
    "cancel_pending_order": "cancelled",
    "modify_pending_order_items": "pending (item modified)",
    "return_delivered_order_items": "return requested",
    "exchange_delivered_order_items": "exchange requested",
}


class Call(NamedTuple):
    """A call of the ground truth of a task, and what it returns; None for an error."""

    task: str
    number: int
    tool: str
    arguments: Mapping[str, Any]
    result: str | None


def ground_truth(domain: str) -> list[Call]:
    """The calls of all tasks; orders have the status that the calls before them in the task gave them."""
    assert DATA is not None
    database = json.loads(gzip.decompress((DATA / domain / "db.json.gz").read_bytes()))
    users = database["users"]
    emails = {user["email"].lower(): user_id for user_id, user in users.items()}
    names = {
        (*(name.lower() for name in user["name"].values()), user["address"].get("zip")): user_id
        for user_id, user in users.items()
    }
    calls: list[Call] = []

    def returns(tool: str, arguments: Mapping[str, Any], changed: Mapping[str, str]) -> str | None:
        if tool == "find_user_id_by_email":
            return emails.get(arguments["email"].lower())
        if tool == "find_user_id_by_name_zip":
            name = (arguments["first_name"].lower(), arguments["last_name"].lower(), arguments["zip"])
            return names.get(name)
        if tool == "get_product_details":
            return json.dumps(database["products"].get(arguments["product_id"]))
        for kind in ("user", "order", "reservation"):
            if tool == f"get_{kind}_details":
                item = database[f"{kind}s"].get(arguments[f"{kind}_id"])
                return item and json.dumps({**item, "status": changed.get(arguments[f"{kind}_id"], item.get("status"))})
        return "done"

    for task in json.loads((DATA / domain / "tasks.json").read_text()):
        changed: dict[str, str] = {}
        for index, call in enumerate(task["evaluation_criteria"]["actions"] or ()):
            tool, arguments = call["name"], call["arguments"]
            calls.append(Call(task["id"], index, tool, arguments, returns(tool, arguments, changed)))
            if tool in CHANGES:
                changed[arguments["order_id"]] = CHANGES[tool]
    return calls


def said_by_users(domain: str) -> dict[str, str]:
    """By task what its user knows and wants, which is what the user says in the course of it."""
    assert DATA is not None
    tasks = json.loads((DATA / domain / "tasks.json").read_text())
    return {task["id"]: "\n".join(filter(None, task["user_scenario"]["instructions"].values())) for task in tasks}
