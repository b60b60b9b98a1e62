"""What a target takes, found out by trying where the case did not fix it, and told in the report."""
