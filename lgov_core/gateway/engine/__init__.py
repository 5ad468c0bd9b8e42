"""The embedded engine: a torch model in this process that answers chat completions (`EmbeddedEngine`).

`decode_worker` runs the model in a thread, `generation` decodes batches, `kv_cache` keeps keys and values.
Modules that import torch are imported when they are first used.
"""
