"""Judges what an MCP client and its server say to each other; `lgov_core.process.mcp_proxy` carries it.

Acts, which one side asks of the other (a tool, a resource, a completion, a question to the user), are judged before and
after, and recorded, as a tool call of any framework is. Definitions of tools are pinned. All else is judged by its texts,
as a tool's result is; what the client tells the server beside its calls passes.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Final, TypeAlias

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, PROTOCOL_VERSION_META_KEY

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyDenied
from lgov_core.flow import Flow, arun_flow, foreign, wait
from lgov_core.governance import OpenGovernance
from lgov_core.governor import Governor
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import PolicySet
from lgov_core.policies.pins import PinnedToolsPolicy
from lgov_core.policies.policy_set import in_shadow_mode
from lgov_core.process.governed import say
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Point, new_id

JSON: TypeAlias = dict[str, Any]
#: Asks the other side for a method with parameters. Returns its result, or raises `MCPError`; `ConnectionError` if it is gone.
Send: TypeAlias = Callable[[str, JSON | None], Awaitable[JSON]]

FRAMEWORK: Final = "mcp"
TOOL_CALL: Final = "tools/call"
TOOL_LIST: Final = "tools/list"
#: The requests that are acts. What is not a tool is judged under the name of its method.
ACTS: Final = frozenset({TOOL_CALL, "resources/read", "sampling/createMessage", "elicitation/create"})
#: The code of the error that says a denial.
DENIED: Final = -32010
#: Members of a message that programs tell programs, and that no model reads.
_SILENT: Final = frozenset({
    "_meta", "type", "role", "resultType", "requestState", "nextCursor", "protocolVersion", "supportedVersions",
    "capabilities", "ttlMs", "cacheScope", "progressToken", "progress", "total", "level",
})  # fmt: skip
#: Members that hold what the protocol does not know: there every member counts, and names that are no identifiers.
_PLAIN: Final = frozenset({"structuredContent", "data", "inputSchema", "outputSchema", "requestedSchema"})
#: Calls that wait for the client's answers to what the server asked by a result.
_MOST_PAUSED: Final = 100


class _Paused(Exception):
    """The server asks for more before it runs the tool: the call is neither done nor failed."""


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
        mode = "shadow" if in_shadow_mode(governor.policies) else "enforce"
        pinned = PolicySet([PinnedToolsPolicy(store=self.pins)], mode=mode)
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
    """One client's session with ``server``, in either direction, and the rollout that it is. For one event loop."""

    def __init__(self, server: GovernedMCPServer, scope: RolloutScope) -> None:
        self.server, self.scope = server, scope
        self.client: str | None = None
        self._ended: Decision | None = None
        self._operations: BoundedDict[str | None, str] = BoundedDict(_MOST_PAUSED)

    async def respond(self, method: str, params: Mapping[str, Any] | None, send: Send) -> JSON:
        """Answers a request of one side; ``send`` asks the other one. Returns the result.

        Raises `MCPError` for the error that is the answer. Fails closed: what cannot be judged does not pass.
        """
        own = None if params is None else dict(params)
        try:
            with enter_scope(self.scope):
                flow = self._act_flow if method in ACTS else self._other_flow
                return await arun_flow(flow(method, own, send))
        except MCPError:
            raise
        except ConnectionError as error:
            return _refused(method, own, f"{error}; {method} may have run or not", CONNECTION_CLOSED)
        except Exception as error:  # noqa: BLE001 - what is not judged does not pass
            say(f"{method} could not be judged: {type(error).__name__}: {error}")
            return _refused(
                method, own, f"DENIED: lgov could not evaluate {method}: {type(error).__name__}", INTERNAL_ERROR
            )

    async def notice(self, method: str, params: Mapping[str, Any] | None) -> JSON | None:
        """The parameters of a notification of the server's as the client may have them; None where it is left out."""
        read, denial = dict(params or {}), None
        if read and self.server.governor.covers(Point.POST_TOOL_CALL):
            try:
                with enter_scope(self.scope):
                    read, denial = await arun_flow(self._text_flow(method, read))
            except Exception as error:  # noqa: BLE001 - what is not judged does not pass
                denial = f"lgov could not evaluate it: {type(error).__name__}: {error}"
        if denial is not None:
            say(f"{method} of {self.server.name} is left out: {denial}")
        return None if denial else read

    # ------------------------------------------------------------------ acts

    def _act_flow(self, method: str, params: JSON | None, send: Send) -> Flow[JSON]:
        is_tool, members = method == TOOL_CALL, params or {}
        action = self._action(method, members)
        if action is None:
            raise MCPError(INVALID_PARAMS, "a call needs a name, and arguments that are an object")
        rule, reason = "tool-withheld", self.server.withheld.get(action.name) if is_tool else None
        if is_tool and action.name in ACTS:
            rule, reason = "tool-name", f"{action.name} is the name of a method, not of a tool"
        if self._ended is not None:
            rule, reason = "session-ended", f"a policy ended this session: {self._ended.reason}"
        if reason is not None:  # no policy is asked
            return _refused(method, params, self.server.governor.refuse(action, rule, reason).denial_message())
        was_sent = False

        async def run(permitted: Mapping[str, Any]) -> JSON:
            nonlocal was_sent
            was_sent = True
            changed = {"arguments": dict(permitted)} if is_tool else dict(permitted)
            answer = await _asked(send, method, params if permitted is action.arguments else {**members, **changed})
            result = answer.get("result", {})
            if result.get("resultType") == "input_required":
                if (state := result.get("requestState")) is not None:
                    self._operations.put(state, str(action.operation_id))
                raise _Paused(answer)
            return answer

        call = GovernedToolCall(self.server.governor, action)
        try:
            governed = yield from tool_flow(call, run, _reading, is_pause=lambda error: isinstance(error, _Paused))
        except _Paused as pause:
            return (yield from self._read_flow(action.name, method, params, pause.args[0]))
        except PolicyDenied as denied:
            self._ended = denied.decision
            return _refused(method, params, denied.decision.denial_message(after=was_sent))
        if governed.denial is not None:
            return _refused(method, params, governed.denial)
        if governed.text is not None:
            return (yield from self._read_flow(action.name, method, params, governed.result))
        return _delivered(governed.result)

    def _action(self, method: str, params: JSON) -> Action | None:
        """The act that a request asks for; None if it is not one."""
        is_tool = method == TOOL_CALL
        name = params.get("name") if is_tool else method
        arguments = params.get("arguments") or {} if is_tool else {key: params[key] for key in params if key != "_meta"}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        resumed = self._operations.pop(params.get("requestState"))
        return Action(
            Point.PRE_TOOL_CALL, name, "mcp", arguments, agent=self.client, framework=FRAMEWORK,
            call_id=new_id("call"), operation_id=resumed or new_id("op"), context={"mcp_server": self.server.name},
        )  # fmt: skip

    # ------------------------------------------------------------------ texts

    def _other_flow(self, method: str, params: JSON | None, send: Send) -> Flow[JSON]:
        if method == "initialize":
            self.client = str(((params or {}).get("clientInfo") or {}).get("name"))
        answer: JSON = yield from wait(foreign(_asked, send, method, params))
        result: JSON = answer.get("result", {})
        if method == TOOL_LIST and isinstance(result.get("tools"), list):
            return {**result, "tools": (yield from self.server.offer_flow(result["tools"]))}
        return (yield from self._read_flow(method, method, params, answer))

    def _read_flow(self, name: str, method: str, params: JSON | None, answer: JSON) -> Flow[JSON]:
        """Judges the texts of ``answer``, puts those into it that a policy rewrote, and delivers it."""
        ((member, value),) = answer.items()
        asks = value.get("inputRequests") if value.get("resultType") == "input_required" else None
        for ask in (asks or {}).values():
            action = self._action(ask["method"], ask.get("params") or {}) if ask["method"] in ACTS else None
            decision = None if action is None else (yield from self.server.governor.decision_flow(action))
            if decision is not None and decision.blocks:
                return _refused(method, params, decision.denial_message())
        value, denial = yield from self._text_flow(name, value)
        return _delivered({member: value}) if denial is None else _refused(method, params, denial)

    def _text_flow(self, name: str, value: Any) -> Flow[tuple[Any, str | None]]:
        """Judges the texts in ``value``. Returns it as policies leave it, or why nobody may read it."""
        if not text_in(value):
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
                    denial = f"DENIED by policy {decision.policy}: the texts of {name} cannot be rewritten one by one."
                    return value, denial
        return value, decision.denial_message(after=True) if decision.blocks else None


# ---------------------------------------------------------------------- reading and writing messages


async def _asked(send: Send, method: str, params: JSON | None) -> JSON:
    """The answer of the other side: its member ``result`` or ``error``."""
    try:
        return {"result": await send(method, params)}
    except MCPError as error:
        return {"error": error.error.model_dump(exclude_none=True)}


def _delivered(answer: JSON) -> JSON:
    """The result in ``answer``. Raises the error in it."""
    if "error" in answer:
        raise MCPError(**answer["error"])
    return answer["result"]


def _places(value: Any, *, plain: bool = False) -> Generator[tuple[Any, Any]]:
    """Where in ``value`` texts and numbers stand that a model reads, as a container and a key of it."""
    bytes_in = {"blob", "data" if isinstance(value, dict) and value.get("type") in ("image", "audio") else "blob"}
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in list(members):
        if plain and isinstance(key, str) and not key.isidentifier():
            yield [key], 0
        if not plain and (key in _SILENT or key in bytes_in):
            continue
        if isinstance(member, dict | list):
            yield from _places(member, plain=plain or key in _PLAIN)
        elif isinstance(member, str | int | float) and not isinstance(member, bool):
            yield value, key


def text_in(value: Any) -> str:
    """The texts in ``value``, each once, one a line."""
    places = _places(value if isinstance(value, dict | list) else [value])
    return "\n".join(dict.fromkeys(str(holder[key]) for holder, key in places))


def _result_action(name: str, value: Any) -> Action:
    status = "error" if isinstance(value, dict) and value.get("isError") else "ok"
    return Action(
        Point.POST_TOOL_CALL, name, "mcp", text=text_in(value), framework=FRAMEWORK, source="tool",
        context={"tool_status": status},
    )  # fmt: skip


def _reading(answer: JSON) -> ToolReading:
    ((member, value),) = answer.items()
    text = text_in(value)
    if member == "error":
        return ToolReading(text, "error", "MCPError", text)
    return ToolReading(text, "error", "MCPToolError", text) if value.get("isError") is True else ToolReading(text)


def _refused(method: str, params: JSON | None, text: str, code: int = DENIED) -> JSON:
    """The result that says ``text`` to the model, if it asked for a tool. Raises an `MCPError` that says it if not."""
    if method != TOOL_CALL:
        raise MCPError(code, text)
    result: JSON = {"content": [{"type": "text", "text": text}], "isError": True}
    meta = (params or {}).get("_meta")
    modern = isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta  # names the kind of every result
    return {**result, "resultType": "complete"} if modern else result
