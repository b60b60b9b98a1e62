"""What a black box computes inside, found by one-hot problems."""
