"""Build and load encoders, thin over the modules of sentence-transformers."""
