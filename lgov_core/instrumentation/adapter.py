"""The declaration of a framework package, and the table of what its denials are tested in."""

from lgov_core.types import Adapter, Gap, Surface

__all__ = ["MODES", "SHAPES", "Adapter", "Gap", "Surface"]

#: How an agent is run, and what it does: the cells of the table of what a denial is tested in.
MODES = ("sync", "async", "streaming")
SHAPES = ("tool", "parallel tools", "hand-off", "agent-as-tool", "MCP tool", "hand-made loop")
