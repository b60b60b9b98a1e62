"""One table of what people get wrong in kernels, read both ways: `mutate` plants it, the search for edits undoes it."""
