"""Files of sparse vectors for other search engines: one engine per module."""
