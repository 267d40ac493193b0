"""cuDNN: what it takes, its code generation, templates and library."""
