"""The only contact with transformers."""
