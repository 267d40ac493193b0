"""Programs for CPUs: kernels as objects, built in parallel, kept by digest and loaded again."""
