"""Black boxes: their intermediates recovered from their gradients."""
