"""What runs inside a gate's own processes, which find it through PYTHONPATH and have it off their path at once."""
