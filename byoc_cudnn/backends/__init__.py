"""One file for each library: what it takes, and its options."""
