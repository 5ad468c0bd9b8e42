"""The tools in a program's source, and the policy that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lgov_core.authoring import starting_policy
from lgov_core.authoring.starting_policy import find_tools
from lgov_core.errors import PolicyError
from lgov_core.policies import load_policy_file
from lgov_core.types import Action, Effect, Point

EXAMPLES = Path(__file__).parents[2] / "examples"


def found(folder: Path, program: str, **modules: str) -> dict[str, Any]:
    """The tools of ``program`` with their schemas; ``modules`` lie beside it."""
    for name, text in {"agent": program, **modules}.items():
        (folder / f"{name}.py").write_text(text)
    return {tool.name: tool.schema for tool in find_tools(folder / "agent.py")}


def judged(text: str, folder: Path, tool: str, **arguments: Any) -> Effect:
    (folder / "policy.yaml").write_text(text)
    return load_policy_file(folder / "policy.yaml").judge(Action(Point.PRE_TOOL_CALL, tool, arguments=arguments)).effect


@pytest.mark.parametrize(
    ("example", "tools"),
    [
        ("01_langchain_agent", ["run_sql", "delete_file"]),
        (
            "02_autogen_agent",
            ["list_files", "read_file", "delete_file", "transfer_to_caretaker", "transfer_to_archivist"],
        ),
        ("03_openai_agents", ["list_bookings", "cancel_booking", "pay_back", "transfer_to_cashier"]),
        ("04_plain_openai", ["list_files", "read_file", "delete_file", "send_mail"]),
    ],
)
def test_the_tools_of_the_examples_are_found(example: str, tools: list[str]) -> None:
    assert [tool.name for tool in find_tools(EXAMPLES / example / "main.py")] == tools


@pytest.mark.parametrize(
    "program",
    [
        "@tool\ndef look(): ...",
        "@server.tool()\nasync def look(): ...",
        "@tool('look')\ndef other(): ...",
        "@function_tool(name_override='look')\ndef other(): ...",
        "def look(): ...\nAgent(tools=[look])",
        "def look(): ...\nTOOLS = [look]",
        "def look(): ...\nmodel.bind_tools([look])",
        "def other(): ...\nFunctionTool(other, name='look', description='Looks.')",
        "def other(): ...\nStructuredTool.from_function(other, name='look')",
        "def other(): ...\nCALLS = {'look': other}",
        "Tool(name='look', func=lambda text: text)",
        "cashier.as_tool(tool_name='look', tool_description='Looks.')",
        "class Look(BaseTool):\n    name: str = 'look'",
        "class Look(BaseTool):\n    name = 'look'",
        "tools = [{'type': 'function', 'function': {'name': 'look', 'parameters': {'type': 'object'}}}]",
        "tools = [{'name': 'look', 'input_schema': {'type': 'object'}}]",
    ],
)
def test_every_way_to_define_a_tool_is_read(tmp_path: Path, program: str) -> None:
    assert list(found(tmp_path, program)) == ["look"]


def test_nothing_of_the_program_is_run(tmp_path: Path) -> None:
    assert list(found(tmp_path, "import no_such_module\n1 / 0\n@tool\ndef look(): ...")) == ["look"]


def test_modules_beside_the_program_are_read(tmp_path: Path) -> None:
    helpers = "@tool\ndef look(): ...\n"
    assert list(found(tmp_path, "from helpers import look\nimport os", helpers=helpers)) == ["look"]


def test_arguments_have_the_types_of_their_annotations(tmp_path: Path) -> None:
    program = (
        "@tool\ndef look(name: str, page: int = 1, deep: bool | None = None, way: Literal['up', 'down'] = 'up',\n"
        "         where: list[str] = [], note: Annotated[str, 'of it'] = '', runtime: ToolRuntime = None): ..."
    )
    assert found(tmp_path, program)["look"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "page": {"type": "integer"},
            "deep": {"type": ["boolean", "null"]},
            "way": {"enum": ["up", "down"]},
            "where": {"type": "array"},
            "note": {"type": "string"},
            "runtime": {},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


def test_the_policy_holds_calls_to_what_the_source_says(tmp_path: Path) -> None:
    program = (
        "import psycopg\n"
        "@tool\ndef look(name: str): ...\n"
        "@tool\ndef run_sql(query: str): ...\n"
        "@tool\ndef bash(command: str): ...\n"
        "@tool\ndef delete_row(key: int): ...\n"
    )
    (tmp_path / "agent.py").write_text(program)
    text, tools = starting_policy(tmp_path / "agent.py", tmp_path)
    assert (tools[0].name, tools[0].place) == ("look", "agent.py:3")
    assert judged(text, tmp_path, "look", name="plans") is Effect.ALLOW
    assert judged(text, tmp_path, "look", name=7) is Effect.DENY
    assert judged(text, tmp_path, "run_sql", query="SELECT 1") is Effect.ALLOW
    assert judged(text, tmp_path, "run_sql", query="DROP TABLE t") is Effect.DENY
    assert judged(text, tmp_path, "bash", command="ls") is Effect.ALLOW
    assert judged(text, tmp_path, "bash", command="rm -rf /") is Effect.DENY
    assert judged(text, tmp_path, "other") is Effect.DENY
    (sql,) = (rule for rule in yaml.safe_load(text)["rules"] if rule["use"] == "sql")
    assert sql["with"]["dialect"] == "postgres"
    (asks,) = (rule for rule in yaml.safe_load(text)["rules"] if rule["use"] == "approval")
    assert asks["tools"] == ["delete_row"]
    assert asks["with"]["wait_s"] > 0


@pytest.mark.parametrize(
    ("program", "says"), [("print(1)", "no tool was found"), ("def (:", "cannot be read as Python")]
)
def test_a_program_without_tools_is_an_error(tmp_path: Path, program: str, says: str) -> None:
    (tmp_path / "agent.py").write_text(program)
    with pytest.raises(PolicyError, match=says):
        starting_policy(tmp_path / "agent.py", tmp_path)
