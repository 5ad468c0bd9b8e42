"""Everything a framework package may import: the adapter declaration, patching, and the steps of a governed call."""

from lgov_core._util.bounded import BoundedDict
from lgov_core._util.json import json_object, json_text
from lgov_core._util.steps import Step, Steps, arun_steps, run_steps
from lgov_core.governor.governor import NOT_EVALUATED, Governor, ObservedDecision, in_scope
from lgov_core.trace import semconv

__all__ = [
    "NOT_EVALUATED",
    "BoundedDict",
    "Governor",
    "ObservedDecision",
    "Step",
    "Steps",
    "arun_steps",
    "in_scope",
    "json_object",
    "json_text",
    "run_steps",
    "semconv",
]
