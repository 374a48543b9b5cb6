"""Encoded corpora as files for other search engines: one target per module, and what the targets share."""
