"""relay-wgrad: convolution gradients as first-class operators in Apache TVM."""
