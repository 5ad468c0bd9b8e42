"""Token sequences: chains, prefix trees, retokenization drift, batches."""
