"""Governs every openai client of this process without touching its code.

`instrument` wraps ``OpenAI.request`` and ``AsyncOpenAI.request``, through which each call of every client goes: Azure's and the
module's own client too, clients made before, and those that frameworks make for themselves. A model call inside one that
a framework's adapter has evaluated is passed on.

`lgov_openai.patching` does it; this module imports no framework.
"""

from __future__ import annotations

from lgov_core.instrumentation.framework import MODES, Gap, Instrumentor, whole_surface

INSTRUMENTOR = Instrumentor(
    name="openai",
    title="openai",
    modules=("openai",),
    tested={"openai": ">=3.15,<4"},
    patching="lgov_openai.patching",
    # Tools are functions of the program, so a call is evaluated when the model proposes it, and its result when the program
    # sends it. A denied text takes the place of the reply; the model is not asked again.
    surface=whole_surface(),
    unsupported={
        (mode, shape): f"plain openai has no {shape}: agents that call agents are the program's own loops"
        for mode in MODES
        for shape in ("hand-off", "agent-as-tool")
    },
    gaps=(
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
        ),
    ),
)

instrument = INSTRUMENTOR.instrument
"""Puts every openai client in this process under its governor, and proves it by a self-test.

Raises `InstrumentationError` where that cannot be done: then the process must not run agents.
"""

uninstrument = INSTRUMENTOR.uninstrument
"""Undoes `instrument` and forgets all conversations."""

lgov_framework = INSTRUMENTOR.lgov_framework
