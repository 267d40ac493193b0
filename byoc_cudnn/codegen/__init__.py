"""What generated sources share: regions read back, entries, templates."""
