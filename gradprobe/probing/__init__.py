"""One probe: runs of a target in its layouts, repeats that must agree, looks inside, receipt."""
