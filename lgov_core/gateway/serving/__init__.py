"""Serving requests: the server, access keys, limits, admission, attribution, capture to the store, metrics, streams."""
