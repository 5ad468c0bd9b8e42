"""``lgov init``: a policy, settings and an agent to run under them."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import FOLDER, command
from lgov_core.commands.output import write_result
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
@click.argument("folder", type=FOLDER, default=Path("."))
@click.option(
    "--framework", type=click.Choice(list(_NEEDS)), help="Of the agent. [default: the first that is installed]"
)
def init(folder: Path, framework: str | None, as_json: bool) -> None:
    """Write policy.yaml, lgov.toml and a small agent.py to FOLDER (default: here), and print what to run next.

    The agent uses the framework that is installed, and the model of OPENAI_BASE_URL and OPENAI_API_KEY; without these a
    scripted model that tries to delete something. A file that is there already is kept; for an agent.py that is there,
    policy.yaml names the tools found in it, as policy init --agent does.
    """
    agent = folder / _AGENT
    texts = {
        _AGENT: "" if agent.exists() else _template(f"{framework or _installed()}.txt"),
        _POLICY: _policy(folder, agent),
        _SETTINGS: _template(_SETTINGS),
        _RECORDS: "*\n",  # the folder of the audit record and the traces, which are not for a repository
    }
    done = {name: _written(folder / name, text) for name, text in texts.items()}
    lines = [f"{'wrote' if wrote else 'kept '} {folder / name}" for name, wrote in done.items()]
    lines += ["next:" if folder.samefile(".") else f"next, in {folder}:"]
    lines += [f"  lgov run -- python {_AGENT}", "  lgov audit show .lgov/audit.db --denied"]
    write_result(
        {"wrote": [str(folder / name) for name, wrote in done.items() if wrote]}, "\n".join(lines), as_json=as_json
    )


def _installed() -> str:
    for name, modules in _NEEDS.items():
        if all(find_spec(module) is not None for module in modules):
            return name
    raise LgovError(
        "no framework that lgov governs is installed", hint='install one, as in: pip install "lgov[langchain]"'
    )


def _policy(folder: Path, agent: Path) -> str:
    if (folder / _POLICY).exists() or not agent.exists():
        return _template(_POLICY)
    from lgov_core.authoring import starting_policy

    return starting_policy(agent, agent.absolute().parent)[0]


def _template(name: str) -> str:
    return resources.files("lgov_core.commands").joinpath("templates", name).read_text(encoding="utf-8")


def _written(file: Path, text: str) -> bool:
    """Whether ``file`` was written: not when it is there already. Raises `LgovError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="utf-8") as made:
            made.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise PolicyError(f"{file} cannot be written: {error.strerror or error}", hint="name another folder") from error
    return True
