"""Small words that all kernels are written in: loops, memory, axes, tiles, parts."""
