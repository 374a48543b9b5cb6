"""Indexes that a server or another project keeps, with the same base class."""
