"""What is known of each language that kernels are written in: a folder for each."""
