"""The one private attribute of openai that this adapter uses, for openai 3.15 to 3.x.

openai has no public way to reach the HTTP client of a client that was made before it is governed.
"""

from __future__ import annotations

from typing import Any

from lgov_core.errors import InstrumentationError


def http_client_of(client: Any) -> Any:
    """The HTTP client (httpx2 or httpx) that an openai ``client`` sends through. Raises `InstrumentationError` without one."""
    http_client = getattr(client, "_client", None)
    if not callable(getattr(http_client, "send", None)):
        raise InstrumentationError(
            f"the HTTP client of this {type(client).__name__} was not found, so it cannot be governed",
            hint="use an openai version that lgov is tested with",
        )
    return http_client
