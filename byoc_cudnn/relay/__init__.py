"""Relay modules: the rows as a pattern table, and partitioned as Relay modules."""
