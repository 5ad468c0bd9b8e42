"""``wrap_tool_node``: the tools of hand-made graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from scripted import Judging, Witness, at, deny, make_governor

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.types import Action, Decision, Point
from lgov_langchain import wrap_tool_node

ran: list[str] = []


@tool
def work(what: str) -> str:
    """Works."""
    ran.append(what)
    if what == "break":
        raise OSError("disk")
    return f"{what} done"


def no_digging(action: Action) -> Decision | None:
    return deny("no digging") if action.arguments.get("what") == "dig" else None


@pytest.fixture
def governor(witness: Witness) -> Any:
    ran.clear()
    return make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)


def run(node: ToolNode, how: str, *whats: str, key: str = "messages") -> dict[str, ToolMessage]:
    calls: Any = [{"name": "work", "args": {"what": what}, "id": f"c-{what}", "type": "tool_call"} for what in whats]
    if key == "messages":
        graph = StateGraph(MessagesState)
    else:
        from typing import Annotated, TypedDict

        from langgraph.graph.message import add_messages

        graph = StateGraph(TypedDict("State", {key: Annotated[list[Any], add_messages]}))  # type: ignore[misc]
    graph.add_node("tools", node)
    graph.set_entry_point("tools")
    built = graph.compile()
    question: Any = {key: [AIMessage("", tool_calls=calls)]}
    state: Any = built.invoke(question) if how == "invoke" else asyncio.run(built.ainvoke(question))
    return {one.tool_call_id: one for one in state[key] if isinstance(one, ToolMessage)}


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_tools_and_nodes_can_be_wrapped(how: str, governor: Any, witness: Witness) -> None:
    for node in (wrap_tool_node(governor, [work]), wrap_tool_node(governor, ToolNode([work]))):
        results = run(node, how, "dig", "rest")
        assert results["c-dig"].status == "error"
        assert "no digging" in results["c-dig"].text
        assert results["c-rest"].text == "rest done"
    assert ran == ["rest", "rest"]
    assert [one.status for one in witness.outcomes].count("denied") == 2


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_node_made_anew_is_like_the_one_it_is_made_from(how: str, governor: Any) -> None:
    node = ToolNode([work], name="hands", handle_tool_errors="oh dear", messages_key="said", tags=["t"])
    governed = wrap_tool_node(governor, node)
    assert (governed.name, governed.tags) == ("hands", ["t"])
    assert run(governed, how, "break", key="said")["c-break"].text == "oh dear"
    asked = wrap_tool_node(governor, [work], messages_key="said", handle_tool_errors="my my")
    assert run(asked, how, "break", key="said")["c-break"].text == "my my"


def in_words(error: OSError) -> str:
    return f"words for {type(error).__name__}"


def other_words(error: LookupError) -> str:
    raise AssertionError("it was not made for this error")


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("handled", [OSError, (LookupError, OSError), in_words])
@pytest.mark.parametrize("others", [LookupError, (LookupError,), other_words])
def test_errors_that_a_node_does_not_handle_go_on(how: str, handled: Any, others: Any, governor: Any) -> None:
    plain = run(ToolNode([work], handle_tool_errors=handled), how, "break")["c-break"].text
    for node in (
        wrap_tool_node(governor, [work], handle_tool_errors=handled),
        wrap_tool_node(governor, ToolNode([work], handle_tool_errors=handled)),
    ):
        assert run(node, how, "break")["c-break"].text == plain
    for node in (
        wrap_tool_node(governor, [work], handle_tool_errors=others),
        wrap_tool_node(governor, ToolNode([work], handle_tool_errors=others)),
    ):
        with pytest.raises(OSError, match="disk"):
            run(node, how, "break")


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("own", ["sync", "async", "both"])
def test_wrappers_of_the_node_run_inside_the_judgement(how: str, own: str, governor: Any) -> None:
    seen: list[str] = []

    def wrap(request: Any, handler: Any) -> Any:
        seen.append(request.tool_call["args"]["what"])
        return handler(request)

    async def awrap(request: Any, handler: Any) -> Any:
        seen.append(request.tool_call["args"]["what"])
        return await handler(request)

    options: Any = {"wrap_tool_call": wrap} if own != "async" else {}
    options |= {"awrap_tool_call": awrap} if own != "sync" else {}
    for node in (wrap_tool_node(governor, ToolNode([work], **options)), wrap_tool_node(governor, [work], **options)):
        ran.clear()
        seen.clear()
        results = run(node, how, "dig", "rest")
        assert "no digging" in results["c-dig"].text
        assert ran == ["rest"]
        assert seen == ([] if (how, own) == ("invoke", "async") else ["rest"])


def test_a_subclass_is_not_made_anew(governor: Any) -> None:
    class Special(ToolNode):
        pass

    with pytest.raises(PolicyError, match="Special"):
        wrap_tool_node(governor, Special([work]))
    with pytest.raises(PolicyError, match="cannot make a governed node"):
        wrap_tool_node(governor, ToolNode([work]), name="other")


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_abort_is_raised_unless_the_node_handles_all_errors(how: str, witness: Witness) -> None:
    ran.clear()
    governor = make_governor(Judging(lambda action: deny("stop", abort=True)), witness=witness)
    with pytest.raises(PolicyDenied):
        run(wrap_tool_node(governor, [work]), how, "rest")
    results = run(wrap_tool_node(governor, [work], handle_tool_errors=True), how, "rest")
    assert "stop" in results["c-rest"].text
    assert ran == []


def test_unknown_tools_and_bad_arguments_are_recorded(governor: Any, witness: Witness) -> None:
    @tool("work")
    def other(number: int) -> str:
        """Counts."""
        return "counted"

    assert run(wrap_tool_node(governor, [other]), "invoke", "rest")["c-rest"].status == "error"

    @tool
    def another(what: str) -> str:
        """Does."""
        return what

    assert run(wrap_tool_node(governor, [another]), "invoke", "rest")["c-rest"].status == "error"
    assert [one.status for one in witness.outcomes] == ["invalid_args", "unknown_tool"]
    assert witness.outcomes[0].error_type == "ValidationError"


def test_without_a_policy_nothing_runs(witness: Witness) -> None:
    ran.clear()
    assert "DENIED" in run(wrap_tool_node(make_governor(witness=witness), [work]), "invoke", "rest")["c-rest"].text
    assert ran == []
