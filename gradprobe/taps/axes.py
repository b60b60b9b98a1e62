"""Along which variables the axes of a tile run, read off a kernel."""
