"""What runs inside programs that gradprobe starts; it comes by PYTHONPATH, and is off their path at once."""
