"""Taking a module's functions apart and putting them together: what goes to a library and how."""
