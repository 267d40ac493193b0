"""Lowerings of the convolution family: the historical composite, and direct kernels."""
