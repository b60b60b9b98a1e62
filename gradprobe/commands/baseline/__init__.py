"""Errors kept in a file, so that one that grows is seen while it is still within its budget."""
