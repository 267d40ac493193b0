"""Weight gradients by sums over pixels."""
