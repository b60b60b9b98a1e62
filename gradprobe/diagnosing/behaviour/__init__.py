"""Faults that no reference can predict, each tried by running the target again in another way."""
