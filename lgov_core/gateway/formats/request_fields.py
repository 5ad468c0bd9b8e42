"""Fields of a request's JSON body, checked: what is wrong is named, what cannot be honoured is refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, cast

from lgov_core.errors import EndpointError


def shown(value: Any) -> str:
    """``value`` as a message shows it, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def flag(body: Mapping[str, Any], name: str) -> bool:
    """A boolean field; absent or null is False. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise EndpointError(f"{name!r} must be true or false, not {shown(value)}")
    return bool(value)


def number(
    body: Mapping[str, Any],
    name: str,
    default: float | None,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
) -> float | None:
    """A number from ``low`` to ``high``, and above ``above``; ``default`` when absent or null. Raises `EndpointError`."""
    value = body.get(name)
    if value is None:
        return default
    right_type = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right_type or not (low <= value <= high and value >= above) or value == above:
        bounds = (
            [f"≥ {low}"] * (low > -math.inf) + [f"> {above}"] * (above > -math.inf) + [f"≤ {high}"] * (high < math.inf)
        )
        kind = "a whole number" if whole else "a number"
        raise EndpointError(f"{name!r} must be {' '.join([kind, *bounds])}, not {shown(value)}")
    return value


def text(body: Mapping[str, Any], name: str, where: str = "") -> str | None:
    """A text field; absent or null is None. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise EndpointError(f"{where}{name!r} must be text, not {shown(value)}")
    return value


def an_object(body: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    """A field that holds an object; absent or null is an empty one. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise EndpointError(f"{where}{name!r} must be an object, not {shown(value)}")
    return cast("Mapping[str, Any]", value or {})


def a_list(body: Mapping[str, Any], name: str, where: str = "") -> list[Any]:
    """A field that holds a list; absent or null is an empty one. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise EndpointError(f"{where}{name!r} must be a list, not {shown(value)}")
    return cast("list[Any]", value or [])


def model_name(body: Mapping[str, Any]) -> str:
    """The field ``model``. Raises `EndpointError`."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise EndpointError("'model' must be the name of a model", hint="GET /v1/models lists them")
    return model


def refuse(
    body: Mapping[str, Any], names: Collection[str], whose: str, *, unless: Mapping[str, Collection[Any]] | None = None
) -> None:
    """Refuses what ``whose`` cannot honour: the fields ``names``, unless they are absent, null, empty, or in ``unless``.

    Raises `EndpointError` (400) that names the field.
    """
    for name in names:
        value = body.get(name)
        if value is None or value == [] or value == {} or value is False:
            continue
        if unless and value in (unless.get(name) or ()):
            continue
        raise EndpointError(f"{name!r} ({shown(value)}) is not supported by {whose}", hint="leave it out")


def only_known(body: Mapping[str, Any], known: Collection[str], whose: str) -> None:
    """Refuses fields outside ``known`` that are not null. Raises `EndpointError` (400) that names them."""
    unknown = sorted(name for name, value in body.items() if name not in known and value is not None)
    if unknown:
        named = ", ".join(map(repr, unknown[:5]))
        raise EndpointError(
            f"{named} is not a field that {whose} knows", hint="leave it out: nothing is dropped silently"
        )
