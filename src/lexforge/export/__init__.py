"""Models and vectors for other runtimes and engines."""
