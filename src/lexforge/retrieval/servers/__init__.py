"""Indexes that a server or another project keeps, behind the same protocol."""
