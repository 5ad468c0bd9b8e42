"""Language models that need no hub, and any transformers model for people who have one.

Importing this package loads neither torch nor transformers.
"""

from lgov_core.models.language_model import LanguageModel
from lgov_core.models.load import load_model, model_source
from lgov_core.models.smollm2 import pull_smollm2, smollm2_folder
from lgov_core.models.tiny import build_tiny

__all__ = ["LanguageModel", "build_tiny", "load_model", "model_source", "pull_smollm2", "smollm2_folder"]
