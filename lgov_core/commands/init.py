"""``lgov init``: a policy, settings and an agent to run under them."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from lgov_core.commands.group import Exit, write_result
from lgov_core.commands.options import EXISTING_FILE, FOLDER, command
from lgov_core.errors import LgovError, PolicyError

#: For each framework the modules that its agent imports, in the order in which they are looked for.
_NEEDS: Final = {
    "langchain": ("langchain", "langchain_openai"),
    "openai-agents": ("agents", "openai"),
    "autogen": ("autogen_agentchat", "autogen_ext"),
    "openai": ("openai",),
}
_AGENT, _POLICY, _SETTINGS, _RECORDS = "agent.py", "policy.yaml", "lgov.toml", ".lgov/.gitignore"


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("folder", type=FOLDER, required=False)
@click.option(
    "--agent", type=EXISTING_FILE, help="Your program, for whose tools to write the policy; it is read, not run."
)
@click.option(
    "--framework", type=click.Choice(list(_NEEDS)), help="Of the new agent. [default: the first that is installed]"
)
def init(folder: Path | None, agent: Path | None, framework: str | None, as_json: bool) -> None:
    """Write policy.yaml, lgov.toml and a small agent.py to FOLDER (default: here), and print what to run next.

    The agent uses the framework that is installed, and the model of OPENAI_BASE_URL and OPENAI_API_KEY; without these a
    scripted model that tries to delete something. A file that is there already is kept.

    With --agent (or an agent.py that is there) policy.yaml has a rule for each tool found in that program and in the modules
    beside it: its arguments as the function declares them, SQL that only reads, approval for what cannot be undone. FOLDER is
    then that of the program unless it is named. Tools that the program gets from a server, or names at run time, are not found:
    record a run in shadow mode (mode: shadow in the policy file), and use lgov policy suggest.
    """
    if agent is not None and framework is not None:
        raise click.UsageError("--framework is of the agent that is written; with --agent there is one already")
    folder = folder or (Path() if agent is None else agent.parent)
    program = agent or folder / _AGENT
    policy, tools = _policy(folder, program, named=agent is not None)
    texts = {_POLICY: policy, _SETTINGS: _template(_SETTINGS)}
    texts[_RECORDS] = "*\n"  # the folder of the audit record and the traces, which are not for a repository
    if agent is None:
        own = "" if program.exists() else _template(f"{framework or _installed_framework()}.txt")
        texts = {_AGENT: own, **texts}
    written = {folder / name: _write_new(folder / name, text) for name, text in texts.items()}
    lines = [f"{'wrote' if wrote else 'kept '} {file}" for file, wrote in written.items()]
    lines += [f"  {tool}" for tool in tools]
    lines += ["next:" if folder.samefile(".") else f"next, in {folder}:"]
    run = program.name if program.parent == folder else str(program.absolute())
    lines += [f"  lgov run -- python {run}", "  lgov audit show --denied"]
    about = {"wrote": [str(file) for file, wrote in written.items() if wrote], "tools": tools}
    write_result(about, "\n".join(lines), as_json=as_json)


def _installed_framework() -> str:
    for name, modules in _NEEDS.items():
        if all(find_spec(module) is not None for module in modules):
            return name
    raise LgovError(
        "no framework that lgov governs is installed", hint='install one, as in: pip install "lgov[langchain]"'
    )


def _policy(folder: Path, program: Path, *, named: bool) -> tuple[str, list[str]]:
    """The text of the policy file, and the tools that it names."""
    if (folder / _POLICY).exists() or not (named or program.exists()):
        return _template(_POLICY), []
    from lgov_core.authoring import starting_policy

    text, tools = starting_policy(program, folder.absolute())
    return text, [f"{tool.name} ({tool.place})" for tool in tools]


def _template(name: str) -> str:
    return resources.files("lgov_core.commands").joinpath("templates", name).read_text(encoding="utf-8")


def _write_new(file: Path, text: str) -> bool:
    """Writes ``file`` and returns True; False when it is there already. Raises `PolicyError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="utf-8") as new_file:
            new_file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise PolicyError(f"{file} cannot be written: {error.strerror or error}", hint="name another folder") from error
    return True
