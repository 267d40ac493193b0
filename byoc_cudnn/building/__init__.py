"""From generated sources to libraries: where compilers and headers are, and what is kept."""
