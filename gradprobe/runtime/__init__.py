"""A target on its inputs, to its trace."""
