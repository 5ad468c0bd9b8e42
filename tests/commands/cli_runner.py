"""Runs commands of ``lgov``, in this process or another."""

from __future__ import annotations

import sys

from click.testing import CliRunner, Result

from lgov_core.commands import cli

LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")

POLICY = """\
version: 1
name: desk
rules:
  - {name: tools, use: tool, with: {allow: [search]}}
"""


def lgov(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments, prog_name="lgov")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
