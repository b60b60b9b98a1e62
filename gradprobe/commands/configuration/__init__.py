"""What a project and its environment say once, and what of it is in force."""
