"""Presets, policy sets for a kernel whose acts carry SQL, and the set that a program passes in one of many forms."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from lgov_core.errors import PolicyError, suggest_name
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.loader import load_policy_file
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.policies.sql.names import Mode, known_dialect
from lgov_core.policies.sql.policy import FROM_TOOL, SQLPolicy
from lgov_core.types import Action, Decision, Point, Policy, Severity

Preset: TypeAlias = Literal["strict", "read_only", "guarded", "permissive"]

#: The names of the presets, from the strictest to the one in shadow mode.
PRESETS: Final[tuple[Preset, ...]] = get_args(Preset)
#: The arguments in which an act may carry SQL. `KernelSpace.execute` puts its input into ``input``.
SQL_ARGUMENTS: Final = ("query", "input", "sql")
#: Without a dialect the SQL must be harmless in each of these: what one server ignores another may execute.
COMMON_DIALECTS: Final = ("sqlite", "postgres", "mysql")


def preset(name: str, *, dialect: str | None = None) -> PolicySet:
    """The preset ``name`` as a policy set. Each judges the SQL text in the arguments ``query``, ``input`` and ``sql``.

    - ``strict``: an act is allowed when SQL is all that it carries and that SQL only reads, with functions known to be
      harmless. A further argument is denied.
    - ``read_only``: as ``strict``, but other arguments (a limit, parameters) may stand beside the SQL. They are not judged.
    - ``guarded``: as ``read_only``, but the SQL may also INSERT, create plain tables, views and indexes, use transactions,
      and UPDATE or DELETE rows that a WHERE picks out.
    - ``permissive``: judges as ``guarded`` and records what that would have denied, but blocks nothing (mode ``shadow``).

    Under the first three an act without SQL, a text that is not SQL and a hand-off are denied. None of them knows what your
    tools do; a rule on their names (`ToolPolicy`) belongs beside a preset. Points other than ``pre_tool_call`` are allowed.

    ``dialect`` is that of the database; ``context["dialect"]`` of an action goes before. With neither, the SQL must be
    allowed in each of `COMMON_DIALECTS`. Raises `PolicyError` for an unknown name or dialect.
    """
    if name not in PRESETS:
        raise PolicyError(f"there is no preset {name!r}", hint=suggest_name(str(name).lower(), PRESETS))
    mode = "read_only" if name in ("strict", "read_only") else "guarded"
    carried = CarriedSQL(mode, only=name == "strict", dialect=dialect, name=f"{name}-sql")
    policies = PolicySet([carried], name=name)
    return policies.in_shadow() if name == "permissive" else policies


class CarriedSQL(BoundedPolicy):
    """Allows an act whose SQL may run, and denies an act that carries none.

    Evaluates ``pre_tool_call`` of every kind, a kernel's whole agents included, by `SQLPolicy` in ``mode``; ``only`` denies
    arguments beside the SQL. ``dialect`` as in `preset`. May be called from several threads at once. Fails closed.
    """

    permits = True

    def __init__(self, mode: Mode, *, only: bool, dialect: str | None, name: str) -> None:
        self.name = name
        self.only = only
        self.dialect = None if dialect is None else known_dialect(dialect)
        self._sql = SQLPolicy(dialect=FROM_TOOL, mode=mode, name=name)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on an act; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        arguments = action.arguments
        texts = [arguments[name] for name in SQL_ARGUMENTS if name in arguments]
        if action.kind == "handoff" or not texts or not all(isinstance(text, str) for text in texts):
            names = " or ".join(SQL_ARGUMENTS)
            return self.deny("sql-missing", f"Only SQL may run here; give it as text in {names}.", Severity.MEDIUM)
        if self.only:
            for argument in arguments:
                if argument not in SQL_ARGUMENTS:
                    reason = f"The argument {str(argument)[:80]!r} is not allowed here; give nothing but the SQL."
                    return self.deny("argument-unknown", reason, Severity.MEDIUM)
        named = action.context.get("dialect", self.dialect)
        try:
            dialects = COMMON_DIALECTS if named is None else (known_dialect(named),)
        except PolicyError as error:
            return self.deny("dialect-unknown", f"{error.message}.", Severity.MEDIUM)
        decisions = [self._sql.judge_sql(text, dialect=dialect) for text in texts for dialect in dialects]
        return max(decisions, key=lambda decision: decision.effect)


def policy_set_of(policy: Any, dialect: str | None = None) -> PolicySet | ReloadingPolicySet:
    """The set that ``policy`` means; an empty one, which denies everything, for None.

    It is a policy, several of them, a set, the path of a policy file or the name of a preset; ``dialect`` is that of the
    database that a preset's policies read statements for. Raises `PolicyError`.
    """
    if policy is None:
        return PolicySet((), name="no policy")
    if isinstance(policy, PolicySet | ReloadingPolicySet):
        return policy
    if isinstance(policy, str) and not policy.endswith((".yaml", ".yml")) and not {"/", os.sep} & set(policy):
        return preset(policy, dialect=dialect)
    if isinstance(policy, str | os.PathLike):
        return load_policy_file(Path(policy))
    if isinstance(policy, Policy):
        return PolicySet((policy,))
    try:
        policies = tuple(cast(Iterable[Any], policy))
    except TypeError:
        raise PolicyError(
            f"{policy!r} is not a policy", hint="pass policies, a PolicySet, a preset's name or a policy file"
        ) from None
    return PolicySet(policies)
