"""lgov for the OpenAI Agents SDK. This release recognises it and refuses to run it; it cannot govern it yet."""
