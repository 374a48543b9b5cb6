"""The numeric leaf: one operation a file, a readable reference and fast paths behind one function."""
