"""Explainers of a followed run."""
