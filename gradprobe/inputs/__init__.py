"""A case's values, drawn or saved, and where they lie in memory."""
