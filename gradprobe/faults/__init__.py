"""What a fault would do to a backward."""
