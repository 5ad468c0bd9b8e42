"""Tells our own training endpoint which rollout a model call belongs to, and tells nobody else.

The headers ``x-lgov-rollout-id``, ``x-lgov-attempt`` and ``x-lgov-agent`` are put on a call only if the model talks
to the endpoint named by the environment variable ``LGOV_ENDPOINT``: same scheme, host and port, and a path below its
path.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from lgov_core.errors import ScopeError
from lgov_core.scope import RolloutScope

ENDPOINT_VARIABLE = "LGOV_ENDPOINT"

#: The endpoint takes no longer name.
MAX_AGENT = 200

_DEFAULT_PORTS = {"http": 80, "https": 443}


def base_url_of(model: Any) -> str | None:
    """Where an OpenAI-style chat model sends its calls, or None if it is not one."""
    for client in (getattr(model, "root_client", None), getattr(model, "root_async_client", None)):
        if (url := getattr(client, "base_url", None)) is not None:
            return str(url)
    if not hasattr(model, "openai_api_base"):
        return None
    return model.openai_api_base or os.environ.get("OPENAI_BASE_URL")


def is_below(url: str, endpoint: str) -> bool:
    """Whether ``url`` lies at or below ``endpoint``. Compared part by part: ``http://host:80800`` is not ``http://host:808``."""
    inner, outer = urlsplit(url), urlsplit(endpoint)
    try:
        same_place = _place(inner) == _place(outer)
    except ValueError:  # a port that is no number
        return False
    path = outer.path.rstrip("/")
    return same_place and (inner.path.rstrip("/") == path or inner.path.startswith(f"{path}/"))


def _place(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _DEFAULT_PORTS.get(url.scheme)


def headers_for(model: Any, scope: RolloutScope | None, agent: str | None) -> dict[str, str]:
    """The headers for a call of ``model`` in ``scope``; empty outside a rollout or for any other host.

    Raises `ScopeError` if the rollout id cannot be put into a header.
    """
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    if not endpoint or scope is None:
        return {}
    url = base_url_of(model)
    if url is None or not is_below(url, endpoint):
        return {}
    return scope_headers(scope, agent)


def scope_headers(scope: RolloutScope, agent: str | None = None) -> dict[str, str]:
    """The headers that name ``scope``; an agent's name is percent-encoded where it is not plain ASCII."""
    if not (scope.rollout_id.isascii() and scope.rollout_id.isprintable()):
        raise ScopeError(
            f"rollout id {scope.rollout_id!r} cannot be sent as a header", hint="use printable ASCII for rollout ids"
        )
    headers = {"x-lgov-rollout-id": scope.rollout_id, "x-lgov-attempt": str(scope.attempt)}
    if agent:
        headers["x-lgov-agent"] = quote(agent, safe=" !#$&'()*+,/:;=?@[]^`{|}~")[:MAX_AGENT]
    return headers
