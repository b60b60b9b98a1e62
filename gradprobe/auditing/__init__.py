"""Is it the test? A user's own reference is judged."""
