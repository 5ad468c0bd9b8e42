"""The wire formats: requests, replies and streams of each model API, read and written in one place.

One module an API (`chat`, `completions`, `responses`, `messages`); `apis` has them as values, `exchange` what passes
between a client and an engine, `sse` the events of streams, `fields` how a JSON body is read strictly.
"""
