"""Graders: one file each, the file's name is the registered name; none of them imports torch."""
