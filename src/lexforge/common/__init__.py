"""What every subpackage shares: the similarity, shared types, ranks, files and progress."""
