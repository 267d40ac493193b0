"""fprop and dgrad by sums over taps, with their accumulators in registers."""
