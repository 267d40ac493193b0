"""The pass that raises composites of old to the operators, and its report."""
