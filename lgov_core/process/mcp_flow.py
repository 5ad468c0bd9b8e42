"""Judges what an MCP client and its server say to each other; `lgov_core.process.mcp_proxy` carries it.

A message is the JSON object of JSON-RPC. A call of a tool and the reading of a resource are acts: judged before and after,
and recorded, as a tool call of any framework is. Definitions of tools are pinned. Every other response, and every request of
the server (sampling, elicitation), is judged by its texts, as a tool's result is. What the client tells the server beside its
calls, and notifications, pass as they are.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyDenied
from lgov_core.flow import Flow, arun_flow, foreign, wait
from lgov_core.governance import OpenGovernance
from lgov_core.governor import Governor
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import PolicySet
from lgov_core.policies.pins import PinnedToolsPolicy
from lgov_core.process.governed import say
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, JSONValue, Point, new_id

JSON: TypeAlias = dict[str, Any]

FRAMEWORK: Final = "mcp"
TOOL_CALL: Final = "tools/call"
TOOL_LIST: Final = "tools/list"
#: The acts that a client asks a server for. What is not a tool is judged under the name of its method.
ACTS: Final = frozenset({TOOL_CALL, "resources/read"})
#: Codes of JSON-RPC errors: no request, arguments of the wrong form, a failure of lgov's, a server that is gone, a denial.
BAD_REQUEST, BAD_PARAMS, FAILED, GONE, DENIED = -32600, -32602, -32603, -32000, -32010
#: Members of a message that programs tell programs, and that no model reads.
_SILENT: Final = frozenset(
    {
        *("_meta", "type", "role", "resultType", "requestState", "nextCursor"),
        *("protocolVersion", "supportedVersions", "capabilities", "ttlMs", "cacheScope"),
    }
)
#: Responses that are kept for a client that lost its connection and asks for them again.
_REPEATED: Final = 100


class MCPServerGone(ConnectionError):
    """The server ended, or its connection broke, before it answered."""


class _Paused(Exception):
    """The server asks for more before it runs the tool: the call is neither done nor failed."""


@dataclass(slots=True)
class MCPCall:
    """A client's request on its way. ``sent`` is the request as the server may have it, ``answered`` the raw response."""

    request: JSON
    sent: asyncio.Future[JSON]
    answered: asyncio.Future[JSON]
    task: asyncio.Task[JSON] = field(init=False)

    async def send(self, request: JSON) -> JSON:
        """Gives ``request`` to whoever carries it. Returns the server's response. Raises `MCPServerGone`."""
        self.sent.set_result(request)
        return await self.answered

    def fail(self, reason: str) -> None:
        """The server is gone for ``reason``: no response comes any more."""
        if not self.answered.done():
            self.answered.set_exception(MCPServerGone(reason))
            self.answered.exception()  # a call that was not sent yet never reads it

    async def permitted(self) -> JSON | None:
        """The request to send; None where it is answered without the server."""
        await asyncio.wait((self.sent, self.task), return_when=asyncio.FIRST_COMPLETED)
        return self.sent.result() if self.sent.done() else None

    async def response(self) -> JSON | None:
        """The response for the client; None where it has cancelled the request."""
        await asyncio.wait((self.task,))
        return None if self.task.cancelled() else self.task.result()


class GovernedMCPServer:
    """One MCP server under policy, for all sessions with it. ``name`` is for people. For one event loop.

    The definitions of its tools are pinned in the file ``mcp-tools.db`` beside the record. `withheld` are the tools that are
    not shown to clients, with the reason.
    """

    def __init__(self, opened: OpenGovernance, name: str) -> None:
        self.name = name
        self.governor = governor = opened.governor
        self.pins = opened.governance.audit.parent / "mcp-tools.db"
        self.withheld: dict[str, str] = {}
        shadow = any(isinstance(policies, PolicySet) and policies.mode == "shadow" for policies in governor.policies)
        pinned = PolicySet([PinnedToolsPolicy(store=self.pins)], mode="shadow" if shadow else "enforce")
        manager = make_plugin_manager(builtin=(), third_party=False)
        self._offers = Governor(pinned, audit=opened.audit, timeout_s=governor.timeout_s, manager=manager)
        self.close = self._offers.close

    def offer_flow(self, tools: list[JSON]) -> Flow[list[JSON]]:
        """Judges definitions of tools; returns those that clients may see, and withholds the others."""
        names = [str(tool.get("name")) for tool in tools]
        denial = yield from self._denial_flow(tools)
        kept: list[JSON] = []
        for tool, name in zip(tools, names, strict=True):
            reason = denial
            if denial is not None and names.count(name) == 1 and len(tools) > 1:
                reason = yield from self._denial_flow([tool])
            if reason is None:
                self.withheld.pop(name, None)
                kept.append(tool)
            elif self.withheld.get(name) != reason:
                self.withheld[name] = reason
                say(f"the tool {name[:80]!r} of {self.name} is withheld: {reason} Pins: {self.pins}")
        return kept

    def _denial_flow(self, tools: list[JSON]) -> Flow[str | None]:
        offer = Action(Point.PRE_MODEL_CALL, TOOL_LIST, "model", {"tools": tools}, framework=FRAMEWORK)
        decision = yield from self._offers.decision_flow(offer)
        if not decision.blocks:
            decision = yield from self.governor.decision_flow(_result_action(TOOL_LIST, tools))
        return decision.reason if decision.blocks else None


class GovernedMCPSession:
    """One client's session with ``server``: the requests in progress, and the rollout that they belong to."""

    def __init__(self, server: GovernedMCPServer, scope: RolloutScope) -> None:
        self.server = server
        self.scope = scope
        self.client: str | None = None
        self.calls: dict[Any, MCPCall] = {}
        #: The judged responses of the last requests, for a client that asks for one again.
        self.judged: BoundedDict[Any, JSON] = BoundedDict(_REPEATED)
        self._ended: Decision | None = None
        self._operations: BoundedDict[str, str] = BoundedDict(_REPEATED)

    def begin(self, request: JSON) -> MCPCall:
        """Begins to answer a client's request. Its task ends with the response for the client, whatever happens."""
        loop = asyncio.get_running_loop()
        call = MCPCall(request, loop.create_future(), loop.create_future())
        key = request["id"]
        fresh = key not in self.calls
        if fresh:
            self.calls[key] = call
            if request.get("method") not in ACTS:
                call.sent.set_result(request)
        call.task = asyncio.create_task(self._response(call, fresh=fresh))
        return call

    def take(self, response: JSON) -> MCPCall | None:
        """Gives a response of the server to the call that waits for it. Returns the call; None where none does."""
        call = self.calls.get(response.get("id"))
        if call is None or not call.sent.done():
            return None
        if not call.answered.done():
            call.answered.set_result(response)
        return call

    async def answer(self, response: JSON) -> JSON | None:
        """Takes a response of the server. Returns the one for the client; None where the client asked for nothing such."""
        call = self.take(response)
        return self.judged.get(response.get("id")) if call is None else await call.response()

    def cancels(self, message: JSON) -> bool:
        """Ends the request that ``message`` of the client cancels. Returns True where the server need not hear of it."""
        if message.get("method") != "notifications/cancelled":
            return False
        call = self.calls.get((message.get("params") or {}).get("requestId"))
        if call is not None:
            call.task.cancel()
        return call is not None and not call.sent.done()

    async def refusal(self, request: JSON) -> JSON | None:
        """Judges a request of the server's. Returns the response that refuses it, None where the client may have it."""
        method = str(request.get("method"))
        try:
            with enter_scope(self.scope):
                read, denial = await arun_flow(self._text_flow(method, request.get("params")))
        except Exception as error:  # noqa: BLE001 - what is not judged does not pass
            return error_response(request, FAILED, f"lgov could not judge {method}: {type(error).__name__}: {error}")
        if denial is None and read is not request.get("params"):
            denial = f"a policy would rewrite the texts of {method}, which only the server may write"
        return None if denial is None else error_response(request, DENIED, denial)

    def close(self, reason: str) -> None:
        """The server is gone for ``reason``: ends what waits for it."""
        for call in self.calls.values():
            call.fail(reason)

    async def _response(self, call: MCPCall, *, fresh: bool) -> JSON:
        request, method = call.request, str(call.request.get("method"))
        try:
            if not fresh:
                return error_response(
                    request, BAD_REQUEST, f"a request with the id {request['id']!r} is in progress already"
                )
            with enter_scope(self.scope):
                flow = self._act_flow(call) if method in ACTS else self._other_flow(call, method)
                response = await arun_flow(flow)
        except MCPServerGone as error:
            text = f"{error}; {method} may have run or not"
            response = _refused(request, text, GONE)
        except Exception as error:  # noqa: BLE001 - what is not judged does not pass
            say(f"{method} could not be judged: {type(error).__name__}: {error}")
            response = _refused(request, f"DENIED: lgov could not judge {method}: {type(error).__name__}", FAILED)
        finally:
            if fresh:
                del self.calls[request["id"]]
        self.judged.put(request["id"], response)
        return response

    # ------------------------------------------------------------------ acts

    def _act_flow(self, call: MCPCall) -> Flow[JSON]:
        request: JSON = call.request
        params: Any = request.get("params")
        is_tool = request["method"] == TOOL_CALL
        params = params if isinstance(params, dict) else {}
        name = params.get("name") if is_tool else request["method"]
        arguments = params.get("arguments") or {} if is_tool else _without_meta(params)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return error_response(request, BAD_PARAMS, "a call needs a name, and arguments that are an object")
        resumed = self._operations.pop(str(params.get("requestState")))
        action = Action(
            Point.PRE_TOOL_CALL, name, "mcp", arguments, agent=self.client, framework=FRAMEWORK,
            call_id=new_id("call"), operation_id=resumed or new_id("op"), context={"mcp_server": self.server.name},
        )  # fmt: skip
        refused = self._refused(action, is_tool)
        if refused is not None:
            return _refused(request, refused.denial_message())

        async def run(permitted: Mapping[str, Any]) -> JSON:
            changed = {"arguments": dict(permitted)} if is_tool else dict(permitted)
            as_sent = request if permitted is action.arguments else {**request, "params": {**params, **changed}}
            response = await call.send(as_sent)
            result = response.get("result")
            if isinstance(result, dict) and result.get("resultType") == "input_required":
                self._operations.put(str(result.get("requestState")), str(action.operation_id))
                raise _Paused
            return response

        governed_call = GovernedToolCall(self.server.governor, action)
        try:
            governed = yield from tool_flow(
                governed_call, run, _reading, is_pause=lambda error: isinstance(error, _Paused)
            )
        except _Paused:
            return (yield from self._read_flow(call, name, call.answered.result()))
        except PolicyDenied as denied:
            self._ended = denied.decision
            return _refused(request, denied.decision.denial_message(after=call.sent.done()))
        if governed.denial is not None:
            return _refused(request, governed.denial)
        return governed.result if governed.text is None else (yield from self._read_flow(call, name, governed.result))

    def _refused(self, action: Action, is_tool: bool) -> Decision | None:
        """The denial of a call that no policy is asked about."""
        rule, reason = "tool-withheld", self.server.withheld.get(action.name) if is_tool else None
        if is_tool and action.name in ACTS:
            rule, reason = "tool-name", f"{action.name} is the name of a method, not of a tool"
        if self._ended is not None:
            rule, reason = "session-ended", f"a policy ended this session: {self._ended.reason}"
        return None if reason is None else self.server.governor.refuse(action, rule, reason)

    # ------------------------------------------------------------------ texts

    def _other_flow(self, call: MCPCall, method: str) -> Flow[JSON]:
        params: Any = call.request.get("params")
        if method == "initialize" and isinstance(params, dict):
            self.client = str(params.get("clientInfo", {}).get("name"))
        response: JSON = yield from wait(foreign(lambda: call.answered))
        result: Any = response.get("result")
        if method == TOOL_LIST and isinstance(result, dict) and isinstance(result.get("tools"), list):
            tools = yield from self.server.offer_flow(result["tools"])
            return (
                response if len(tools) == len(result["tools"]) else {**response, "result": {**result, "tools": tools}}
            )
        return (yield from self._read_flow(call, method, response))

    def _read_flow(self, call: MCPCall, name: str, response: JSON) -> Flow[JSON]:
        """Judges the texts of ``response``, and puts those into it that a policy rewrote."""
        member = "result" if "result" in response else "error"
        read, denial = yield from self._text_flow(name, response[member])
        return {**response, member: read} if denial is None else _refused(call.request, denial)

    def _text_flow(self, name: str, value: Any) -> Flow[tuple[Any, str | None]]:
        """Judges the texts in ``value``. Returns it as policies leave it, or why nobody may read it."""
        if not _text(value):
            return value, None
        decision = yield from self.server.governor.decision_flow(_result_action(name, value))
        if decision.text is not None and not decision.blocks:
            value = copy.deepcopy(value)
            for holder, key in _places(value):
                single = yield from self.server.governor.decision_flow(_result_action(name, holder[key]))
                holder[key] = holder[key] if single.text is None else single.text
                decision = single if single.blocks else decision
            if not decision.blocks:  # texts that only together are what a policy rewrites
                decision = yield from self.server.governor.decision_flow(_result_action(name, value))
                if decision.text is not None:
                    return (
                        value,
                        f"DENIED by policy {decision.policy}: the texts of {name} cannot be rewritten one by one.",
                    )
        return value, decision.denial_message(after=True) if decision.blocks else None


# ---------------------------------------------------------------------- reading and writing messages


def _places(value: Any, *, plain: bool = False) -> Generator[tuple[Any, Any]]:
    """Where in ``value`` texts and numbers stand that a model reads, as a container and a key of it.

    Structured content and details of errors are ``plain`` data: there every member counts, and names that are no identifiers.
    """
    bytes_in = {"blob", "data" if isinstance(value, dict) and value.get("type") in ("image", "audio") else "blob"}
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in list(members):
        if plain and isinstance(key, str) and not key.isidentifier():
            yield [key], 0
        if not plain and (key in _SILENT or key in bytes_in):
            continue
        if isinstance(member, dict | list):
            yield from _places(member, plain=plain or key in ("structuredContent", "data"))
        elif isinstance(member, str | int | float) and not isinstance(member, bool):
            yield value, key


def _text(value: Any) -> str:
    """The texts in ``value``, each once, one a line."""
    places = _places(value if isinstance(value, dict | list) else [value])
    return "\n".join(dict.fromkeys(str(holder[key]) for holder, key in places))


def _result_action(name: str, value: Any) -> Action:
    status: JSONValue = "error" if isinstance(value, dict) and value.get("isError") else "ok"
    context = {"tool_status": status}
    return Action(
        Point.POST_TOOL_CALL, name, "mcp", text=_text(value), framework=FRAMEWORK, source="tool", context=context
    )


def _reading(response: JSON) -> ToolReading:
    error: Any = response.get("error")
    if error is not None:
        text = _text(error)
        return ToolReading(text, "error", "MCPError", text)
    result = response.get("result")
    text = _text(result)
    failed = isinstance(result, dict) and result.get("isError") is True
    return ToolReading(text, "error", "MCPToolError", text) if failed else ToolReading(text)


def _without_meta(params: JSON) -> JSON:
    return {name: value for name, value in params.items() if name != "_meta"}


def error_response(request: JSON, code: int, message: str) -> JSON:
    """The error of JSON-RPC that answers ``request``."""
    return {"jsonrpc": "2.0", "id": request.get("id"), "error": {"code": code, "message": message}}


def _refused(request: JSON, text: str, code: int = DENIED) -> JSON:
    """The response that says ``text`` to the model: the result of a tool where there is one, else an error."""
    if request.get("method") != TOOL_CALL:
        return error_response(request, code, text)
    result: JSON = {"content": [{"type": "text", "text": text}], "isError": True}
    meta = (request.get("params") or {}).get("_meta") or {}
    if any(str(key).endswith("/protocolVersion") for key in meta):  # protocols since 2026 name the kind of every result
        result["resultType"] = "complete"
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}
