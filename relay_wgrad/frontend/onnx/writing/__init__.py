"""Relax functions as ONNX: a table of rows, one for each operator; `function` walks."""
