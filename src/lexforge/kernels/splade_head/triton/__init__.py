"""The GPU twin of the SPLADE head; imported only when a CUDA tensor asks for it."""
