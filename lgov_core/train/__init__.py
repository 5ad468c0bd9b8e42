"""Collect, batch, update, publish. Needs the extra ``train``; nothing is loaded until a submodule is imported."""
