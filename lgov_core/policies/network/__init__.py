"""The ``egress`` policy: URLs, addresses, and connections that keep to what was judged."""
