"""Real inputs: kept while a program runs, and replayed."""
