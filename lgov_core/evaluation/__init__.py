"""What became of a training: a checkpoint as a model, measured on tasks or handed on. Needs the extra ``train``."""
