"""Programs of StableHLO, as JAX writes them, in Relax."""
