"""A model's value states, measured."""
