"""Puts the headers of `lgov_core.instrumentation.endpoint_headers` on the calls of LangChain's chat models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import RolloutScope


def base_url_of(model: Any) -> str | None:
    """Where an OpenAI-style chat model sends its calls, or None if it is not one."""
    for client in (getattr(model, "root_client", None), getattr(model, "root_async_client", None)):
        if (url := getattr(client, "base_url", None)) is not None:
            return str(url)
    if not hasattr(model, "openai_api_base"):
        return None
    return model.openai_api_base or os.environ.get("OPENAI_BASE_URL")


def headers_for(model: Any, scope: RolloutScope, agent: str | None) -> dict[str, str]:
    """The headers for a call of ``model`` in ``scope``; empty for any other host.

    Raises `ScopeError` if the rollout id cannot be put into a header.
    """
    return endpoint_headers(base_url_of(model), scope, agent)


def with_headers(settings: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a model call with ``headers`` among those it sends; ours win."""
    return {**settings, "extra_headers": {**(settings.get("extra_headers") or {}), **headers}}
