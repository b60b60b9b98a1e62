"""What is computed: a case, its values, drawn or saved, and where they lie in memory."""
