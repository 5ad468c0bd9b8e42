"""SecretsPolicy: keys, tokens and passwords stay out of actions and results."""

from __future__ import annotations

from lgov_core.policies.content import secret_checks
from lgov_core.policies.content.content import ContentPolicy
from lgov_core.types import Severity


class SecretsPolicy(ContentPolicy):
    """Denies actions that contain a secret, or takes the secret out, in both directions.

    Finds keys and tokens in the formats of many services, private keys, passwords in URLs, basic and bearer authorization,
    and the value of anything that is called a password, key, token or secret, unless it is a placeholder (``${NAME}``,
    ``<your key>``, ``xxxx``). Does not find a password that nothing calls one.

    Looks at the text and at the arguments, at any depth, keys included. ``action`` is ``deny``, or ``redact``: each value is
    replaced by its kind in brackets. ``kinds`` are the kinds to look for (all unless given). ``allow`` are globs for values
    that may pass. An action of more than ``max_characters`` is denied.
    """

    slug = "secret"
    usual_name = "secrets"
    check_of = staticmethod(secret_checks.check_of)
    noun = "a secret"
    severity = Severity.CRITICAL
