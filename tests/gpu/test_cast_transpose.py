"""Casts and transpositions of many tensors in one launch: bit for bit what each alone gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax

import byoc_cudnn
from tests.support.cast_transpose import chains, step
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

SHAPES = [(64, 3, 7, 7), (64, 64, 1, 1), (64, 64, 3, 3), (1, 1, 1, 1), (5, 7, 3, 1),
          (512, 129, 3, 3), (3, 8, 2, 2), (256, 1, 3, 3), (31, 33, 1, 1),
          (8, 2048, 1, 1)]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    choose_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("half", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scaled", [False, True])
def test_as_on_the_cpu(half: str, scaled: bool) -> None:
    shapes = SHAPES * 8  # more than one table
    mod = step(shapes, scaled, half)
    values = [np.random.default_rng(i).standard_normal(s, "float32") for i, s in enumerate(shapes)]
    values.append(np.float32(7))
    device = tvm.cuda(0)
    library = byoc_cudnn.build(mod)
    assert [entry.op for entry in library.direct] == ["cast_transpose", "cast_transpose"]
    got = library.virtual_machine(device)["main"](*(tvm.runtime.tensor(v, device) for v in values))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    want = vm["main"](*(tvm.runtime.tensor(v) for v in values))
    for shape, a, b in zip(shapes, got, want, strict=True):
        different = int((a.numpy() != b.numpy()).sum())
        assert different == 0, f"{shape}: {different} of {a.numpy().size}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("to_float", [False, True])
def test_packs_that_are_filled_or_cut(seed: int, to_float: bool) -> None:
    mod, made = chains(seed, to_float)
    source = "float16" if to_float else "float32"
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(chain.sizes).astype(source) for chain in made]
    values.append(np.float32(3))
    device = tvm.cuda(0)
    library = byoc_cudnn.build(mod)
    assert "cast_transpose" in [entry.op for entry in library.direct]
    got = library.virtual_machine(device)["main"](*(tvm.runtime.tensor(v, device) for v in values))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    want = vm["main"](*(tvm.runtime.tensor(v) for v in values))
    for chain, a, b in zip(made, got, want, strict=True):
        assert np.array_equal(a.numpy(), b.numpy()), str(chain)
