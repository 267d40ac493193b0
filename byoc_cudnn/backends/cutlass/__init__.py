"""CUTLASS: what it takes, which kernel for what, its code generation and templates."""
