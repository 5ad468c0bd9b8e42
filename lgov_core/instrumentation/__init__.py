"""Everything a framework package may import: the adapter declaration, patching, and the flow of a governed call."""

from lgov_core._util.containers import BoundedDict
from lgov_core._util.json_text import NotCanonical, fingerprint, json_object, readable_json
from lgov_core.flow import Flow, Step, arun_flow, either, foreign, in_thread, run_flow, wait
from lgov_core.governor import NOT_EVALUATED, Governor, ObservedDecision, in_scope
from lgov_core.governor.options import CARRIED, UNNAMED, carrying, open_question
from lgov_core.trace import semconv

__all__ = [
    "CARRIED",
    "NOT_EVALUATED",
    "UNNAMED",
    "BoundedDict",
    "Flow",
    "Governor",
    "NotCanonical",
    "ObservedDecision",
    "Step",
    "arun_flow",
    "carrying",
    "either",
    "fingerprint",
    "foreign",
    "in_scope",
    "in_thread",
    "json_object",
    "open_question",
    "readable_json",
    "run_flow",
    "semconv",
    "wait",
]
