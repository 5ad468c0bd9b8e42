"""A program and everything it starts, held by the Linux kernel: what ``lgov run --confine`` does.

`lgov_core.confine.plan` turns the rules of a policy file into paths and hosts, `lgov_core.confine.box` puts a new process
tree under them before its first line, and `lgov_core.confine.broker` keeps the record and the approvals outside. Unprivileged,
standard library only. Its door is `lgov_core.confine.run.run_confined`.
"""
