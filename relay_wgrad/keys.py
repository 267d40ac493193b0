"""Keys of the attributes of functions, each said here once: TVM's, Relay's and our own."""

from __future__ import annotations

# ---- TVM's ---------------------------------------------------------------------------------------
SYMBOL = "global_symbol"  # what a function exports
COMPOSITE = "Composite"  # a Relax or Relay function: which row of a backend it is
CODEGEN = "Codegen"  # a Relax function: who generates its code
PRIMITIVE = "Primitive"  # a Relax or Relay function: it has been fused
OP_PATTERN = "op_pattern"  # a kernel: how it may be fused
SCHEDULED = "tirx.is_scheduled"  # a kernel: TVM's schedules leave it
NO_ALIAS = "tirx.noalias"  # a kernel: its buffers do not overlap
HOST = "tirx.is_host_func"  # a kernel: it runs on the host, whatever the target

# ---- Relay's -------------------------------------------------------------------------------------
COMPILER = "Compiler"  # what `CODEGEN` is in Relax
INLINE = "Inline"
FROM_PATTERN = "PartitionedFromPattern"

# ---- ours ----------------------------------------------------------------------------------------
# A kernel's and a composite's convolution: the operator's short name, and `ConvProblem.repro()`.
OP, PROBLEM = "relay_wgrad.op", "relay_wgrad.problem"
# Which generator made a kernel and which of its kernels it is, and why that was chosen.
SOURCE, REASON = "relay_wgrad.lowering", "relay_wgrad.reason"
# A kernel that compares sizes (`relay_wgrad.conditions`).
SIZES = "relay_wgrad.sizes"
# A composite's row, and its backend's options as JSON.
ROW, OPTIONS = "relay_wgrad.row", "relay_wgrad.options"
# The same options on a Relay module's function, whose text has identifiers for keys.
RELAY_OPTIONS = "relay_wgrad_options"
# A Relax function of an optimizer's update, or of a count: its rule and numbers as JSON.
UPDATE = "relay_wgrad.update"
# A kernel's statements that a call may take the place of (`relay_wgrad.building.parts`).
PART = "relay_wgrad.part"
# A kernel that does nothing but check a size.
CHECK = "relay_wgrad.check"
# A kernel: the results that may be written in the place of an operand; a module: those of functions
# by their symbols (`relay_wgrad.pipeline.overwrites`).
OVERWRITES = "relay_wgrad.overwrites"
# A Relax function of several that are called one after another: its place among them, and of which
# results of others its arguments are, as JSON.
CHAIN = "relay_wgrad.chain"
# A module: symbols of functions that take as long as their operands and results are read and
# written once.
MOVES = "relay_wgrad.moves"
# A module: whether its float32 matrix products may round their operands to tf32.
TF32 = "relay_wgrad.tf32"
