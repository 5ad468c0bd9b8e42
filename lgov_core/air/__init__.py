"""Automatic intermediate rewards (AIR): a tool's outcome, a denial or a model's reply earns a small reward on that call.

    from lgov_core import air

    @air.on_tool_success("search_*")
    def found_something(tool_name, output):
        return 0.1 if output else 0.0

`outcome_rewards` has `AirPlugin` and the decorators, `rule_file` reads rules in YAML.
"""

from lgov_core.air.outcome_rewards import (
    AirPlugin,
    current,
    on_denied,
    on_model_call,
    on_tool_failure,
    on_tool_success,
    plugin,
    scope,
    use,
)
from lgov_core.air.rules import AIR_FILE_SCHEMA, AirRule, AirRules, RuleSet, load_rules, rules_of

__all__ = [
    "AIR_FILE_SCHEMA",
    "AirPlugin",
    "AirRule",
    "AirRules",
    "RuleSet",
    "current",
    "load_rules",
    "on_denied",
    "on_model_call",
    "on_tool_failure",
    "on_tool_success",
    "plugin",
    "rules_of",
    "scope",
    "use",
]
