"""`GovernedEnvironment`: a kernel as a Gymnasium environment. Needs the extra ``gym``."""

from lgov_core.rl_governance.environment import (
    EnvironmentConfig,
    EnvironmentState,
    FreeText,
    GovernedEnvironment,
    create_governed_env,
)

__all__ = ["EnvironmentConfig", "EnvironmentState", "FreeText", "GovernedEnvironment", "create_governed_env"]
