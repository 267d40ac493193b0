"""Keys of the attributes that a composite carries: its problem, its row, its backend's options."""

PROBLEM, ROW, OPTIONS = "relay_wgrad.problem", "relay_wgrad.row", "relay_wgrad.options"
