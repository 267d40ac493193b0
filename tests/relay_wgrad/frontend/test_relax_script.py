"""Relax's scripts as TVM 0.16 to 0.25 printed them, and the unity branch."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import relax

import byoc_cudnn
from relay_wgrad.frontend import from_relax_script
from relay_wgrad.transform import raise_conv_backward
from tests.support.built import built
from tests.support.relay.dialect_texts import HERE

OLD = (HERE / "relax_0.20.txt").read_text(encoding="utf-8")


def _todays_words(text: str) -> str:
    for old, new in (
        ('"void"', "None"), ("out_sinfo", "out_ty"), ("T.block", "T.sblock"),
        ("(private=True)", "(private=True, s_tir=True)"), ("tir.noalias", "tirx.noalias"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.usefixtures("registered")
def test_a_training_graph() -> None:
    old, new = from_relax_script(OLD), tvm.script.from_source(_todays_words(OLD))
    tvm.ir.assert_structural_equal(old, new)
    (raised, report), (today, _) = map(raise_conv_backward, (old, new))
    assert "raised 1 wgrad" in str(report)
    ours, theirs = (byoc_cudnn.partition(mod)[1] for mod in (raised, today))
    assert ours.offloaded == ours.total == 3
    assert [(e.row, e.reason) for e in ours.entries] == [(e.row, e.reason) for e in theirs.entries]


# ---- today's modules in old words ----------------------------------------------------------------


def _network(op: Any, *shapes: tuple[int, ...], **attrs: Any) -> tvm.IRModule:
    """The sum of what an operator gives."""
    params = [
        relax.Var(f"p{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
    ]
    return built(params, lambda emit: relax.op.sum(emit(op(*params, **attrs))))


nn = relax.op.nn
NETWORKS = {
    "conv": (nn.conv2d, ((2, 4, 6, 6), (6, 2, 3, 3)), {"padding": 1, "groups": 2}),
    "transposed": (nn.conv2d_transpose, ((2, 4, 6, 6), (4, 3, 2, 2)), {"strides": 2}),
    "product": (relax.op.matmul, ((2, 3), (3, 4)), {}),
    "pool": (nn.avg_pool2d, ((2, 4, 6, 6),), {"pool_size": 3, "padding": 1}),
    "counted": (
        nn.avg_pool2d, ((2, 4, 6, 6),),
        {"pool_size": 3, "padding": 1, "count_include_pad": True},
    ),
    "running sum": (relax.op.cumsum, ((2, 3),), {"axis": 1}),
    "softmax": (nn.log_softmax, ((2, 3),), {}),
}  # fmt: skip


def _old_words(text: str, last: int) -> str:
    """A script as 0.`last` printed it."""
    rows = (
        (25, r"(\bd?type|out_dtype)=None", r'\1="void"'), (25, "out_ty=", "out_sinfo="),
        (25, "ty_args=", "sinfo_args="), (24, r", s_tir=True|\(s_tir=True\)", ""),
        (23, '"tirx\\.', '"tir.'), (23, "tirx", "tir"), (22, r"T\.sblock_alloc", "T.alloc"),
        (22, r"T\.sblock", "T.block"), (15, r", count_include_pad=True", ""),
    )  # fmt: skip
    for until, new, old in rows:
        if last <= until:
            text = re.sub(new, old, text)
    return text


_KERNELS = (15, 22, 23, 24, 25)


@pytest.mark.longer_cases("transposed", "product", "pool", "counted", "softmax", "conv")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", NETWORKS)
def test_old_words(name: str) -> None:
    op, shapes, attrs = NETWORKS[name]
    mod = _network(op, *shapes, **attrs)
    graph = mod if name == "running sum" else relax.transform.Gradient("main")(mod)
    for module, releases in ((graph, (15, 25)), (relax.transform.LegalizeOps()(mod), _KERNELS)):
        for last in releases:
            if last == 15 and name == "pool":
                continue  # always counted then
            text = _old_words(module.script(), last)
            release = "0.15" if last == 15 else None
            tvm.ir.assert_structural_equal(from_relax_script(text, release), module)


# ---- what is in doubt ----------------------------------------------------------------------------

POOL = """@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 4, 6, 6), dtype="float32")) -> R.Tensor((2, 4, 6, 6), dtype="float32"):
        y: R.Tensor((2, 4, 6, 6), dtype="float32") = R.nn.avg_pool2d(x, pool_size=[3, 3], \
padding=[1, 1, 1, 1])
        z: R.Tensor((2, 4), dtype="float32") = WHAT
        return y
"""
PLAIN = "R.sum(y, axis=[2, 3])"
VOID = 'R.cumsum(R.sum(y, axis=[2, 3]), axis=1, dtype="void")'


def _counted(text: str, release: str | None) -> bool:
    calls: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and node.op.name == "relax.nn.avg_pool2d":
            calls.append(node)

    relax.analysis.post_order_visit(from_relax_script(text, release)["main"], visit)
    return bool(calls[0].attrs["count_include_pad"])


def test_what_a_pool_counts() -> None:
    for what in (PLAIN, VOID):
        text = POOL.replace("WHAT", what)
        assert _counted(text, "0.15")
        assert not _counted(text, "0.16")
    assert not _counted(POOL.replace("WHAT", PLAIN), None)  # by hand, today
    for what, release in ((VOID, None), (PLAIN, "0.16.dev0")):
        with pytest.raises(ValueError, match=r"line 5: until 0\.15 R\.nn\.avg_pool2d counted"):
            from_relax_script(POOL.replace("WHAT", what), release)


REFUSED = {
    "tir_vars": ("R.call_tir(f, (y,), tir_vars=R.shape([n]))", r"line 6: .*call_tir\(tir_vars=\)"),
    "separators": ("R.layout_transform(y, axis_separators=[])", r"axis separators"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    what, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        from_relax_script(POOL.replace("WHAT", what))


def test_what_is_no_module() -> None:
    with pytest.raises(ValueError, match=r"one module .* got 0"):
        from_relax_script("x = 1")
    with pytest.raises(ValueError, match="line 1: not supported: constants in `metadata`"):
        from_relax_script('metadata = tvm.ir.load_json("")\n' + POOL)
    with pytest.raises(SyntaxError):
        from_relax_script("class")
    with pytest.raises(TypeError, match="is a str, not bytes"):
        from_relax_script(b"")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="release is a version of TVM"):
        from_relax_script(POOL, "new")
    with pytest.raises(TypeError, match="as a str, not float"):
        from_relax_script(POOL, 0.2)  # type: ignore[arg-type]
