"""The ``approval`` policy and the requests that wait for a person."""
