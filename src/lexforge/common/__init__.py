"""What every room shares: the similarity, shared types, ranks, files and progress."""
