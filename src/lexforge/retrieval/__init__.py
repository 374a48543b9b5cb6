"""Indexes behind one protocol: build, search, save, load."""
