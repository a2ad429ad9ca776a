"""Recipes, zoo entries and what they may say."""
