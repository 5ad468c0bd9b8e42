"""``lgov policy init``."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command
from lgov_core.commands.output import write_result
from lgov_core.errors import PolicyError


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH, default=Path("policy.yaml"))
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def init(file: Path, force: bool, as_json: bool) -> None:
    """Write a commented policy file to start from to FILE (policy.yaml unless named)."""
    text = resources.files("lgov_core.policies").joinpath("starter.yaml").read_bytes()
    if file.is_dir():
        raise PolicyError(f"{file} is a folder", hint="name a file in it")
    if file.exists() and not file.is_file():  # such as a device, which would be replaced
        raise PolicyError(f"{file} is not a regular file", hint="name a new file, or a regular one")
    scratch = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        if not force:
            with open(file, "xb") as made:
                made.write(text)
        else:
            scratch.write_bytes(text)
            os.replace(scratch, file)
    except FileExistsError as error:
        raise PolicyError(f"{file} already exists", hint="choose another name, or replace it with --force") from error
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise PolicyError(f"{file} cannot be written: {error.strerror or error}", hint="name another place") from error
    text = (
        f"wrote {file}\n  change it, then: lgov policy check {file}\n"
        f"  govern a program with it: lgov run --policy {file} -- python agent.py"
    )
    write_result({"file": str(file)}, text, as_json=as_json)
