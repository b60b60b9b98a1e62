"""What runs inside a watched program, which finds it through PYTHONPATH and has it off its path before it begins."""
