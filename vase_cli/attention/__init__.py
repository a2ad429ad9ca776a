"""Attention backends, one file each: the file's name is the backend's name."""
