"""Runs inside a watched program, which finds it through PYTHONPATH. It leaves the path before the program begins."""
