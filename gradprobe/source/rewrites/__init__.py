"""What people get wrong in kernels: `mutate` plants it, the search for edits undoes it."""
