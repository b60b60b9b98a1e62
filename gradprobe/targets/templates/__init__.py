"""Files that `gradprobe init` writes for its user; each runs as it is."""
