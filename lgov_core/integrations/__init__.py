"""Ways to other systems, each on its own: verl, agent-lightning, AGENT-HOOKS and agent-os.

Nothing in lgov imports them. They are named where they are reached: the backends of a training
(`lgov_core.train.algorithms.algorithms`), the routes of the endpoint (`lgov_core.gateway.app`), the policies of a policy file.
"""
