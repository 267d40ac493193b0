"""ONNX: files, what each operator becomes, and training graphs back to files."""
