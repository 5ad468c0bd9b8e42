"""Puts the headers of `lgov_core.instrumentation.endpoint_headers` on the calls of LangChain's chat models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import current_scope
from lgov_langchain.runs import agent_name


def attributed(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call of ``model``, with the headers that attribute it to the rollout if it goes to lgov's endpoint.

    Raises `ScopeError` if the rollout id cannot be put into a header.
    """
    scope = current_scope()
    headers = endpoint_headers(_base_url(model), scope, agent_name()) if scope is not None else None
    if not headers:
        return dict(settings)
    return {**settings, "extra_headers": {**(settings.get("extra_headers") or {}), **headers}}


def _base_url(model: Any) -> str | None:
    """Where an OpenAI-style chat model sends its calls, or None if it is not one."""
    for client in (getattr(model, "root_client", None), getattr(model, "root_async_client", None)):
        if (url := getattr(client, "base_url", None)) is not None:
            return str(url)
    if not hasattr(model, "openai_api_base"):
        return None
    return model.openai_api_base or os.environ.get("OPENAI_BASE_URL")
