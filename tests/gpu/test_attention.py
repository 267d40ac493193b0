"""Attention's kernels on a GPU, against float64; alone, `python -m tests.gpu.test_attention` also
times them beside PyTorch's."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import torch

from byoc_cudnn.attention import ATTENTION
from tests.support.gpu.attention_runner import CASES, Tensors, calls, times, wrong
from tests.support.gpu.norm_runner import load_source

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", list(CASES))
def test_both_directions(tmp_path: Path, dtype: str) -> None:
    assert not wrong(tmp_path, dtype)


def test_calls_are_checked(tmp_path: Path) -> None:
    made = calls([(64, 20, 20)], "float16")
    functions = load_source(ATTENTION.generate, ATTENTION.inputs, made, tmp_path)
    t = Tensors(made[1])
    t.run(functions["f0"], functions["b0"])
    with pytest.raises(TypeError, match="expected 5 tensors, got 4"):
        functions["f0"](*t.given, t.out)
    with pytest.raises(ValueError, match="q has 100 elements, expected"):
        functions["f0"](t.given[0][:100].contiguous(), *t.given[1:], t.out, t.logs)
    with pytest.raises(ValueError, match="the logarithms has 100 elements, expected 120"):
        functions["f0"](*t.given, t.out, t.logs[:100].contiguous())
    with pytest.raises(TypeError, match="out must be float16"):
        functions["f0"](*t.given, t.out.float(), t.logs)
    with pytest.raises(ValueError, match="a result has"):
        functions["f0"](*t.given, t.given[0], t.logs)


def main() -> int:
    """Exit code 1 if something is wrong."""
    print(torch.cuda.get_device_name(), torch.__version__)
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for dtype in CASES for line in wrong(Path(folder) / dtype, dtype)]
        print("\n".join(lines) or "all are right", flush=True)
        for line in times(Path(folder)):
            print(line, flush=True)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
