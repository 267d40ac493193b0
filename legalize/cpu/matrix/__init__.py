"""bfloat16 on a CPU's matrix units (AMX): sums in float32, in tiles."""
