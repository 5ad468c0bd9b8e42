"""Which process a kill is given: the one on a port, or the one whose number a program left in a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lgov_core.policies.shell_script import Script
    from lgov_core.policies.shell_syntax import Node

#: A question for the process on a port that needs no rights.
_BY_PORT = (
    r"lsof (?=-t|-i|-\w*t)(?:-[tiPn]{1,4} ?|-t -i ?)(?:tcp|TCP)?"
    r":(?:102[4-9]|10[3-9]\d|1[1-9]\d\d|[2-9]\d{3}|[1-6]\d{4})(?: -t)?(?: -?sTCP:LISTEN)?"
)


def ends_by_port(stages: Sequence[str]) -> bool:
    """Whether a pipeline, as text, ends what listens on a port of no service of the machine, and nothing else."""
    return re.fullmatch(rf"{_BY_PORT} \| xargs (?:-r )?kill(?: -(?:9|15|KILL|TERM))?", " | ".join(stages)) is not None


def is_process(script: Script, node: Node) -> bool:
    """Whether a word of kill stands for one process. Raises `Refused` for a file that others may write their number into."""
    text = script.words.text(node).strip('"')
    if re.fullmatch(rf"\$\({_BY_PORT}\)", text):
        return True
    match = re.fullmatch(r"\$\((?:cat |< ?)([\w./-]+\.pid)\)", text)
    if match is not None:
        script.places.write(match[1])
    return match is not None
