"""The abilities of lgov with plain openai. Imports no framework until it is instrumented."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.framework import MODES, Adapter, Gap, whole_surface
from lgov_openai.instrumentor import TESTED, instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Tools are functions of the program, so a call is evaluated when the model proposes it, and its result when the program
#: sends it. A denied text takes the place of the reply; the model is not asked again.
SURFACE = whole_surface()

UNSUPPORTED: Mapping[tuple[str, str], str] = {
    (mode, shape): f"plain openai has no {shape}: agents that call agents are the program's own loops"
    for mode in MODES
    for shape in ("hand-off", "agent-as-tool")
}

GAPS: tuple[Gap, ...] = (
    Gap(
        "calls the model did not propose",
        "Tools are functions of the program: a call that it makes on its own, or with other arguments than the model"
        " proposed, is not evaluated.",
    ),
    Gap(
        "hosted tools",
        "Tools that the model's server runs itself (web search, code interpreter, a remote MCP server) have run when the"
        " reply comes.",
    ),
    Gap(
        "replies that are fetched later",
        "A response that was made in the background, or stored, reaches the program by retrieve() without evaluation.",
        ("retrieve",),
    ),
    Gap(
        "connections that stay open",
        "Realtime sessions and the Responses API over a websocket do not use the client's HTTP client.",
    ),
    Gap(
        "runs on the server",
        "Assistants, agents, batches and other runs on the server are not model calls of this process.",
        ("create_and_poll", "create_and_run", "create_and_run_poll", "submit_tool_outputs"),
    ),
    Gap(
        "other kinds of requests",
        "Completions of a plain prompt, embeddings, images, audio and moderation are not evaluated, in either direction.",
    ),
    Gap(
        "other ways to a model",
        "Requests that a program sends without the openai client (httpx, requests, other libraries) are not evaluated.",
        ("post", "urlopen"),
    ),
)


def installed() -> bool:
    """Returns whether openai can be imported; does not import it."""
    return importlib.util.find_spec("openai") is not None


@hookimpl
def lgov_framework() -> Adapter:
    """The adapter for plain openai."""
    return Adapter(
        name="openai",
        modules=("openai",),
        tested=TESTED,
        surface=SURFACE,
        installed=installed,
        instrument=instrument,
        uninstrument=uninstrument,
        unsupported=UNSUPPORTED,
        gaps=GAPS,
    )
