"""What a fault would do to a backward, predicted by evaluating the reference with it."""
