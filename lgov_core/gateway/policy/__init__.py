"""Policy at the endpoint: judges requests and replies, and remembers decisions on messages."""
