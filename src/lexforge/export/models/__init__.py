"""Encoders for other runtimes: one target per module, and what the targets share."""
