"""PyTorch: exported programs, and what each operator becomes."""
