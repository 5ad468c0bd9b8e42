"""What an upstream sent, kept so that it can be passed on exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lgov_core.errors import UpstreamError


class UpstreamRejection(UpstreamError):
    """The upstream refused the request (a 4xx): its status, body and content type are handed on as they are.

    ``route`` is the API in which it was asked.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str],
        route: str = "chat",
    ) -> None:
        super().__init__(message, status=status)
        self.route = route
        self.body = body
        self.content_type = content_type
        self.headers = headers


class ReceivedBody(dict[str, Any]):
    """A JSON body that also keeps the bytes in which it came, so that it can be passed on exactly."""

    __slots__ = ("received",)

    def __init__(self, content: Mapping[str, Any], received: bytes) -> None:
        super().__init__(content)
        self.received = received
