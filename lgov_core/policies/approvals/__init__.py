"""The policy that asks a person, and the requests that wait for one."""
