"""Build and load encoders, thin over the modules of sentence-transformers."""

from lexforge.models.fused import fuse_splade_head, unfuse_splade_head

__all__ = ["fuse_splade_head", "unfuse_splade_head"]
