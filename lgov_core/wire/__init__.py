"""The wire formats: requests, replies and streams of each model API, read and written in one place.

One module an API (`chat` with `chat_turns`, `completions`, `responses` with `responses_stream` and `responses_turns`,
`messages`); `apis` has them as values, `exchange` what passes between a client and an engine, `turns` transcripts as they
are judged, `fields` how a JSON body is read strictly, and which fields there are.
"""
