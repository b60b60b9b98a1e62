"""Several cases: which ones, and what came of each."""
