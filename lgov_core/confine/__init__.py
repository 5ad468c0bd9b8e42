"""Confines a program and everything it starts by the Linux kernel: what ``lgov run --confine`` does.

`plan` turns the rules of a policy file into paths and hosts, `box` starts a process tree under them before its first line of
code, and `broker` keeps the audit record and the approvals outside. Unprivileged, standard library only. The command's entry
point is `lgov_core.process.confined.run_confined`.
"""
