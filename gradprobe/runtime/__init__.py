"""A target on its inputs -> a trace: backends, launches."""
