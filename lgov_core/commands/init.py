"""``lgov init``: a policy, settings and an agent to run under them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from lgov_core.commands.group import Exit, write_result
from lgov_core.commands.options import FOLDER, command
from lgov_core.errors import LgovError, PolicyError
from lgov_core.process.invocation import parse_command

#: For each framework the modules that its agent imports, in the order in which they are looked for.
_NEEDS: Final = {
    "langchain": ("langchain", "langchain_openai"),
    "openai-agents": ("agents", "openai"),
    "autogen": ("autogen_agentchat", "autogen_ext"),
    "openai": ("openai",),
}
_AGENT, _POLICY, _SETTINGS = "agent.py", "policy.yaml", "lgov.toml"
#: Where `lgov serve` listens.
_ENDPOINT: Final = "http://127.0.0.1:8321"
_RECORDS = (".lgov/.gitignore", ".traces/.gitignore")  # not for a repository


class _WithProgram(click.Command):
    """A command whose words after ``--`` are a program's command, in ``ctx.meta["program"]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta["program"] = tuple(args[len(own) + 1 :])
        return super().parse_args(ctx, list(own))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@command(Exit.OK, Exit.FINDING, Exit.USAGE, cls=_WithProgram)
@click.argument("folder", type=FOLDER, required=False)
@click.option(
    "--framework", type=click.Choice(list(_NEEDS)), help="Of the new agent. [default: the first that is installed]"
)
@click.pass_context
def init(ctx: click.Context, folder: Path | None, framework: str | None, as_json: bool) -> None:
    """Write policy.yaml, lgov.toml and a small agent.py to FOLDER (default: here), and print what to run next.

    The agent uses the framework that is installed, and the model of OPENAI_BASE_URL and OPENAI_API_KEY; without these a
    scripted model that tries to delete something. A file that is there already is kept.

    \b
      lgov init -- python agent.py
      lgov init desk -- python -m package

    With a COMMAND, as of lgov run, policy.yaml is for that program: it is started once, offline, with a model that ends every
    call at once, and has a rule for each tool that it offers to the model: arguments as the model sees them, paths in the
    working folder, SQL that only reads, code in a box, approval for what cannot be undone. FOLDER is then that of the program
    unless it is named. No tool runs and no other machine is reached, but the program's own code runs. A program that reaches
    no model: record a run in shadow mode (mode: shadow in the policy file), and use lgov policy suggest.
    """  # noqa: D301 - click wants the control character
    program: tuple[str, ...] = ctx.meta["program"]
    if program and framework is not None:
        raise click.UsageError("--framework is of the agent that is written; with a command there is one already")
    if folder is None:
        folder = Path(os.path.relpath(parse_command(program).folder)) if program else Path()
    texts: dict[str, str] = {}
    policy, tools, by_endpoint = _template(_POLICY), list[str](), False
    if not program:
        if (folder / _AGENT).exists() and not (folder / _POLICY).exists():
            raise PolicyError(
                f"{folder / _AGENT} is there already, and has no policy",
                hint=f"write one for what it offers to its model: lgov init -- python {folder / _AGENT}",
            )
        own = "" if (folder / _AGENT).exists() else _template(f"{framework or _installed_framework()}.txt")
        texts = {_AGENT: own}
    elif not (folder / _POLICY).exists():
        policy, tools, by_endpoint = _policy_of(program, folder)
    texts |= {_POLICY: policy, _SETTINGS: _template(_SETTINGS), **dict.fromkeys(_RECORDS, "*\n")}
    written = {folder / name: _write_new(folder / name, text) for name, text in texts.items()}
    lines = [f"{'wrote' if wrote else 'kept '} {file}" for file, wrote in written.items()]
    lines += [f"  {tool}" for tool in tools]
    lines += ["next:" if program or folder.samefile(".") else f"next, in {folder}:"]
    confine = "--confine " * ("use: box" in policy or "use: shell" in policy)
    if by_endpoint:  # no adapter sees the calls of its client
        lines += [f"  lgov serve --policy {_POLICY} --upstream URL   # of the model, in another terminal"]
        confine += f"--endpoint {_ENDPOINT} "
    lines += [f"  lgov run {confine}-- {shlex.join(program or ('python', _AGENT))}", "  lgov audit show --denied"]
    about = {"wrote": [str(file) for file, wrote in written.items() if wrote], "tools": tools}
    write_result(about, "\n".join(lines), as_json=as_json)


def _policy_of(program: Sequence[str], folder: Path) -> tuple[str, list[str], bool]:
    """The policy file for ``program``, its tools, and whether a client asked that only an endpoint can govern.

    Raises `PolicyError` where it reaches no model.
    """
    from lgov_core.process.offline_start import start_offline, starting_policy

    start = start_offline(program)
    if not start.calls and not start.tools:
        ended = "did not end" if start.status is None else f"ended with status {start.status}"
        words = f"; it wrote: {start.last_words}" if start.last_words else ""
        raise PolicyError(
            f"{shlex.join(program)} reached no model: it {ended}{words}",
            hint="start it so that it asks its model, or record a run in shadow mode, and use: lgov policy suggest STORE",
        )
    text = starting_policy(start, shlex.join(program), folder.absolute(), Path.cwd())
    return text, [f"{tool.name} ({tool.kind})" for tool in start.tools.values()], start.by_endpoint


def _installed_framework() -> str:
    for name, modules in _NEEDS.items():
        if all(find_spec(module) is not None for module in modules):
            return name
    raise LgovError(
        "no framework that lgov governs is installed", hint='install one, as in: pip install "lgov[langchain]"'
    )


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
