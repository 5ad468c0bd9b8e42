"""Policies about amounts: calls, tokens, cost and time that may be spent, and the ledger that counts them."""
