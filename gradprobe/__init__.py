"""gradprobe: runs an attention backward kernel beside a float64 reference and points at the first wrong number."""

__version__ = "0.1.0"
