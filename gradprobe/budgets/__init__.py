"""The error allowed to each element, derived from the arithmetic that a kernel declares."""
