"""Offloading of the convolution family to vendor libraries."""
