"""Headers that name the rollout of a model call, for lgov's own training endpoint only.

The headers ``x-lgov-rollout-id``, ``x-lgov-attempt`` and ``x-lgov-agent`` are put on a call only if it goes to the
endpoint named by the environment variable ``LGOV_ENDPOINT``: same scheme, host and port, and a path below its path.
"""

from __future__ import annotations

import os
from urllib.parse import SplitResult, quote, urlsplit

from lgov_core.errors import ScopeError, SettingsError
from lgov_core.scope import RolloutScope

ENDPOINT_VARIABLE = "LGOV_ENDPOINT"

#: The endpoint takes no longer name.
MAX_AGENT = 200

_DEFAULT_PORTS = {"http": 80, "https": 443}


def endpoint_headers(base_url: str | None, scope: RolloutScope | None, agent: str | None = None) -> dict[str, str]:
    """The headers for a call to ``base_url`` in ``scope``; empty outside a rollout and for any other host.

    Raises `ScopeError` if the rollout id cannot be put into a header. Callable from any thread.
    """
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    if not endpoint or scope is None or base_url is None or not is_below(base_url, endpoint):
        return {}
    return scope_headers(scope, agent)


def demand_endpoint() -> None:
    """Raises `SettingsError` unless the environment names an endpoint."""
    if not os.environ.get(ENDPOINT_VARIABLE):
        raise SettingsError(
            f"endpoint_headers=True, but {ENDPOINT_VARIABLE} is not set",
            hint=f"set {ENDPOINT_VARIABLE} to the base URL of the training endpoint",
        )


def is_below(url: str, endpoint: str) -> bool:
    """Returns whether ``url`` is at or below ``endpoint``, part by part: ``http://host:80800`` is not ``http://host:808``."""
    try:
        inner, outer = urlsplit(url), urlsplit(endpoint)
        same_place = _place(inner) == _place(outer)
    except ValueError:  # a malformed port or host
        return False
    path = outer.path.rstrip("/")
    return same_place and (inner.path.rstrip("/") == path or inner.path.startswith(f"{path}/"))


def _place(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or _DEFAULT_PORTS.get(url.scheme)


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
