"""A run and its judgements turned into numbers."""
