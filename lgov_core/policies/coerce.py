"""Coerces what a program passes as its policies into one set."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from lgov_core.errors import PolicyError
from lgov_core.policies.loader import load_policy_file
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.presets import preset
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.types import Policy


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
