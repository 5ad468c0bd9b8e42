"""How what happened is described: span and attribute names, and the plugin that writes events to a store."""
