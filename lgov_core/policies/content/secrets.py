"""SecretsPolicy: keys, tokens and passwords stay out of actions and results."""

from __future__ import annotations

from lgov_core.policies.content import secret_checks
from lgov_core.policies.content.content import ContentPolicy
from lgov_core.types import Severity


class SecretsPolicy(ContentPolicy):
    """Denies actions that hold a secret, or takes the secret out, in both directions.

    Looks for keys and tokens in the formats of many services, private keys, passwords in URLs, basic and bearer
    authorization, and values given to something called a password, key, token or secret, unless they are placeholders
    (``${NAME}``, ``<your key>``, ``xxxx``). See `ContentPolicy` for where it looks and what the options mean.

    A password that is written without saying that it is one is not found.
    """

    slug = "secret"
    usual_name = "secrets"
    check_of = staticmethod(secret_checks.check_of)
    noun = "a secret"
    severity = Severity.CRITICAL
