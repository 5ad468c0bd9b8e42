"""The HTTP server around the endpoint: access, limits, keys, metrics, capture."""
