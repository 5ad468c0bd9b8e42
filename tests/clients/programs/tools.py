"""The tools of these programs."""

import subprocess
from pathlib import Path


def bash(command: str, description: str) -> str:
    """Runs a command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "(no output)"


def write(filePath: str, content: str) -> str:
    """Writes a file."""
    Path(filePath).write_text(content)
    return "written"


def _schema(*names: str) -> dict:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


TOOLS = [
    {"name": "bash", "description": "Runs a command", "parameters": _schema("command", "description")},
    {"name": "write", "description": "Writes a file", "parameters": _schema("filePath", "content")},
]


def run(name: str, arguments: dict) -> str:
    """Runs a tool by its name."""
    return {"bash": bash, "write": write}[name](**arguments)
