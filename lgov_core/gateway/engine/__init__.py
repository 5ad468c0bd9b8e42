"""The embedded engine: a torch model in the endpoint's process. Needs the extra ``train``."""
