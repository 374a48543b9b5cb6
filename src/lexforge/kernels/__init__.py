"""Numeric operations: each has a readable reference and a fast path behind one function with `impl=`."""

from lexforge.kernels.splade_head import splade_head, splade_head_reference

__all__ = ["splade_head", "splade_head_reference"]
