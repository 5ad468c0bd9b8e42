"""The documented API for governed reinforcement learning, as an adapter over `Governor` and `Client`.

Its names are those of ``agentmesh-lightning`` and ``agent-os``. Programs import them from the documented modules:
``lgov_core.kernel``, ``.runner``, ``.environment``, ``.emitter``, ``.reward``, ``.trainer`` and ``.compat``.
"""
