"""Step times against the memory floor."""
