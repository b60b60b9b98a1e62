"""What may undo a fault of a file of kernels: candidate edits of the lines at fault and of what flows into them."""
