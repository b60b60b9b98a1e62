"""What stands in a terminal by default: a failing check in 24 rows, a match in 10."""
