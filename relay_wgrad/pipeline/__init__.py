"""Relax modules to kernels: the CPU's pipeline, CUDA's, and the passes that they share."""
