"""A check from Python: `gradprobe.check`. Nothing here is imported before it is called."""
