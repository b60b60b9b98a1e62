"""Faults planted in a user's own kernel, and what a gate makes of each."""
