"""Request and reply formats: chat completions, completions, responses, messages."""
