"""What a fault would do to a backward: one kind of fault a file, each predicted by evaluating the reference with it."""
