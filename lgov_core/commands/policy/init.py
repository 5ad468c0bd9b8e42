"""``lgov policy init``."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, PATH, command
from lgov_core.commands.output import write_result
from lgov_core.errors import PolicyError


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH, required=False)
@click.option("--agent", type=FILE, help="Name the tools that this Python program defines; it is read, not run.")
@click.option(
    "--from", "store", metavar="STORE", help="Name the tools that a recorded run used, as policy suggest does."
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def init(file: Path | None, agent: Path | None, store: str | None, force: bool, as_json: bool) -> None:
    """Write a commented policy file to start from to FILE. [default: policy.yaml, beside the program of --agent]

    With --agent FILE it has a rule for each tool found in that program and in the modules beside it: its arguments as the
    function declares them, SQL that only reads, approval for what cannot be undone. Tools that the program gets from a
    server, or names at run time, are not found: record a run in shadow mode (mode: shadow in the policy file, lgov run
    --store STORE), and use --from STORE.
    """
    if agent is not None and store is not None:
        raise click.UsageError("give --agent or --from, not both")
    file = file or (agent.with_name("policy.yaml") if agent else Path("policy.yaml"))
    text, found = _text_and_tools(file, agent, store)
    write_new(file, text.encode(), force=force)
    program = agent or "agent.py"
    lines = [f"wrote {file}", *(f"  {tool}" for tool in found), f"  change it, then: lgov policy check {file}"]
    lines.append(f"  govern a program with it: lgov run --policy {file} -- python {program}")
    write_result({"file": str(file), "tools": found}, "\n".join(lines), as_json=as_json)


def _text_and_tools(file: Path, agent: Path | None, store: str | None) -> tuple[str, list[Any]]:
    if agent is not None:
        from lgov_core.authoring import starting_policy

        text, tools = starting_policy(agent, file.absolute().parent)
        return text, [f"{tool.name} ({tool.place})" for tool in tools]
    if store is not None:
        from lgov_core.commands.policy.suggest import suggestion

        found = suggestion(store, file, None)
        return found.text, list(found.tools)
    return resources.files("lgov_core.policies").joinpath("starter.yaml").read_text(), []


def write_new(file: Path, data: bytes, *, force: bool = False) -> None:
    """Writes ``data`` to ``file``, which must not exist unless ``force``. Raises `PolicyError`."""
    if file.is_dir():
        raise PolicyError(f"{file} is a folder", hint="name a file in it")
    if file.exists() and not file.is_file():  # such as a device, which would be replaced
        raise PolicyError(f"{file} is not a regular file", hint="name a new file, or a regular one")
    scratch = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        if not force:
            with open(file, "xb") as made:
                made.write(data)
        else:
            scratch.write_bytes(data)
            os.replace(scratch, file)
    except FileExistsError as error:
        raise PolicyError(f"{file} already exists", hint="choose another name, or replace it with --force") from error
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise PolicyError(f"{file} cannot be written: {error.strerror or error}", hint="name another place") from error
