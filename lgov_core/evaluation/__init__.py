"""A trained checkpoint as a model: measured on tasks, or exported. Needs the extra ``train``."""
