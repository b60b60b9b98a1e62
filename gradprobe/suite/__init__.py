"""Several cases of one target: which ones, and what came of each."""
