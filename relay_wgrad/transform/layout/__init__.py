"""The pass that converts a module's layouts, and its report."""
