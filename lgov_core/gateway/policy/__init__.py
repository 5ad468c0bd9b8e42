"""Policy at the endpoint: judges calls and replies for agents whose process is not governed.

`open_gate` makes a `PolicyGate`; `gate_calls` converts calls and replies for it.
"""
