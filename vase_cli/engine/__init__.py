"""Generation with a static cache."""
