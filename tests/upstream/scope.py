"""Which of upstream's files are in scope, and why the others are not."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

FOLDER = Path("tests/python/relay")

# Patterns of paths below `FOLDER`, and why such a file is left out.
OUT_OF_SCOPE = {
    "opencl_texture/*": "another vendor's device: OpenCL textures of Adreno",
    "qnn/*": "quantization (qnn)",
    "test_op_qnn_*": "quantization (qnn)",
    "test_pass_qnn_legalize.py": "quantization (qnn)",
    "test_pass_fake_quantization_to_integer.py": "quantization (qnn)",
    "test_analysis_extract_fake_quantized_ops.py": "quantization (qnn)",
    "test_pass_auto_quantize.py": "quantization (relay.quantize)",
    "test_auto_scheduler_*": "autotuning (auto_scheduler)",
    "test_autotvm_*": "autotuning (autotvm)",
    "strategy/*": "autotuning (choice among strategies by tuning records)",
    "collage/*": "autotuning (collage)",
    "test_pass_collage_partition.py": "autotuning (collage)",
    "test_vm.py": "the VM",
    "test_vm_serialization.py": "the VM",
    "test_pass_manifest_lifetimes.py": "the VM (lifetimes of its registers)",
    "test_memory_passes.py": "the VM (its allocations)",
    "test_tensor_array.py": "the VM (arrays of tensors as algebraic data types)",
    "test_adt.py": "the VM (Relay's prelude of algebraic data types, computed)",
    "test_pass_partial_eval.py": "the VM's programs (partial evaluation of closures)",
    "test_pass_to_cps.py": "the VM's programs (continuation-passing style)",
    "test_pass_defunctionalization.py": "the VM's programs (closures as algebraic data types)",
    "test_pass_flexible_shape_dispatch.py": "the VM (a choice among programs by the batch's size)",
    "test_pass_fast_math.py": "approximations of exp, tanh and erf, operators of Relay's own",
    "test_pass_legalize_tensorcore.py": "forms that TVM 0.19's CUDA schedules registered",
    "transform/test_capture_postdfsindex_in_spans.py": "autotuning (collage's numbers of nodes)",
    "test_pass_unmatched_cases.py": "the VM (`match` of algebraic data types)",
    "test_py_converter.py": "the VM's counterpart in Python (closures and data types, computed)",
    "test_link_params.py": "microcontrollers (parameters in a library for the C runtime)",
    "test_used_memory_annotator.py": "microcontrollers (memory of AOT's functions, by its FFI)",
    "test_target_hooks.py": "target kinds that TVM 0.19 registers in C++ for its tests",
    "test_relay_te_compiler.py": "Relay's compiler to TE, in C++, and autotuning's strategies",
    "backend/*": "Relay's compiler to TE, in C++, by its FFI",
    "test_type_solver.py": "Relay's type solver, in C++, by its FFI",
    "test_json_compact.py": "files in JSON of TVM 0.6 to 0.8",
    "test_pass_plan_devices.py": "programs on several devices",
    "op/annotation/test_annotation.py": "programs on several devices (on_device)",
    "test_pipeline_executor.py": "the pipeline executor, of several devices of other vendors",
    "test_custom_datatypes.py": "number formats of one's own, which TVM was built with or without",
    "test_roofline.py": "measurements of a device's roofline",
}


def why_out(name: str) -> str | None:
    """Why the file of that path below `FOLDER` is left out; None where it is in scope."""
    return next((why for pattern, why in OUT_OF_SCOPE.items() if fnmatch(name, pattern)), None)


def in_scope(checkout: Path, pattern: str = "*") -> list[str]:
    """The files to run, as paths below `FOLDER`.

    Raises ValueError where the checkout has none.
    """
    root = checkout / FOLDER
    names = sorted(str(path.relative_to(root)) for path in root.rglob("test_*.py"))
    if not names:
        raise ValueError(f"{root} has no test: is {checkout} a checkout of TVM 0.19?")
    return [name for name in names if why_out(name) is None and fnmatch(name, pattern)]
