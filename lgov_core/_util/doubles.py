"""Tells test doubles from real objects."""

from __future__ import annotations

from typing import Any


def answers_to_anything(thing: Any) -> bool:
    """Whether it has an attribute of any name, as a mock does: then nothing that it has means anything."""
    try:
        return hasattr(thing, "lgov_attribute_that_nothing_has")
    except Exception:  # noqa: BLE001 - it knows at least that it does not have this one
        return False
