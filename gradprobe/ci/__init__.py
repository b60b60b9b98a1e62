"""Checks on every push: the files that a repository needs for them."""
