"""Relay's text as TVM 0.8 to 0.18 printed it: docs/reference/dialects.md says what differs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm

import byoc_cudnn
from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.make import call
from relay_wgrad.relay.records import REGISTRY, lookup
from relay_wgrad.relay.rewrite import rewrite
from relay_wgrad.relay.text.attribute_kinds import FIELDS
from relay_wgrad.relay.text.dialects import GONE, GONE_ATTRS, RENAMED, release_of
from relay_wgrad.releases import Release
from tests.support.fast import FAST
from tests.support.relay.dialect_texts import PAIRS
from tests.support.relay.dialects import (
    RELEASES,
    known,
    printed,
    rewritten,
    typed,
    without_widths,
)
from tests.support.relay.evaluate import evaluate
from tests.support.relay.op_cases import CASES
from tests.support.relay.run_cases import CASES as RUN_CASES
from tests.support.relay.simple_programs import program
from tests.support.relay.texts import HEADER, fixture_text, fixture_texts

# ---- programs that do not depend on the writer ---------------------------------------------------


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", PAIRS)
def test_written_by_hand(name: str) -> None:
    pair = PAIRS[name]
    mod = typed(relay.fromtext(pair.text, release=pair.release))
    raised, today = T.RaiseConvBackward()(mod), typed(relay.fromtext(pair.today))
    assert relay.structural_equal(raised, today)
    assert relay.structural_equal(mod, relay.fromtext(relay.astext(mod)))
    # Both go to cuDNN as the same convolutions.
    ours, theirs = (byoc_cudnn.partition(m)[1] for m in (raised, today))
    assert [(e.backend, e.row, e.reason) for e in ours.entries] == [
        (e.backend, e.row, e.reason) for e in theirs.entries
    ]


@pytest.mark.longer_cases("network", "scattered")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", PAIRS)
def test_computes_what_it_meant(name: str) -> None:
    """One program of both: what the old text has for its body, and what says it in other words."""
    pair = PAIRS[name]
    old = relay.fromtext(pair.text, release=pair.release)["main"]
    new = relay.fromtext(pair.meaning)["main"]
    same = dict(zip(new.params, old.params, strict=True))
    body = rewrite(new.body, lambda _, node: node, dict(same))  # type: ignore[arg-type]
    both = relay.IRModule({"main": relay.Function(old.params, relay.Tuple((old.body, body)))})
    rng = np.random.default_rng(3)
    inputs = {p.name: _numbers(rng, p.type_annotation) for p in old.params}
    module = relay.graph_executor.GraphModule(relay.build(typed(both), FAST)["default"](tvm.cpu()))
    module.run(**inputs)
    count = module.get_num_outputs() // 2
    for i in range(count):
        a, b = (module.get_output(j).numpy() for j in (i, i + count))
        assert np.abs(a).max() > 0
        np.testing.assert_allclose(a, b, 1e-4, 1e-4)


def _numbers(rng: Any, ty: Any) -> np.ndarray:
    if ty.dtype == "int64":
        return rng.integers(0, 2, ty.shape)
    return rng.uniform(0.5, 1.5, ty.shape).astype(ty.dtype)


# ---- today's programs in each dialect ------------------------------------------------------------


@pytest.mark.longer_cases("resnet8_cifar", "mobilenet", "mlp_grad", "smallnet_grad_nhwc")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", fixture_texts())
def test_fixture(name: str) -> None:
    mod = relay.fromtext(fixture_text(name))
    for minor in RELEASES:
        _reads(mod, minor)


def _reads(mod: relay.IRModule, minor: int) -> None:
    """The text of a release is the program, its version said by the metadata or by the caller."""
    if not known(mod, minor):
        return
    old = rewritten(mod, minor)
    gradients = minor <= 8 and "nn.conv2d_backward_weight" in relay.astext(mod)
    if gradients:
        old = typed(old)
    back = relay.fromtext(printed(old, minor), release=f"0.{minor}")
    if gradients:
        # 0.8 has no operator of that name: its gradient is the composite, which is raised.
        assert "backward_weight" not in relay.astext(back)
        back, mod = T.RaiseConvBackward()(typed(back)), _no_out_dtype(mod)
    same = without_widths(mod) if minor <= 8 else mod
    assert relay.structural_equal(back, same), relay.astext(back)


def _no_out_dtype(mod: relay.IRModule) -> relay.IRModule:
    """Weight gradients without the dtype that 0.9 states: it is the operands'."""

    def change(_: Any, node: Any) -> Any:
        if not isinstance(node, relay.Call) or node.op.name != "nn.conv2d_backward_weight":
            return node
        return replace(node, attrs={k: v for k, v in node.attrs.items() if k != "out_dtype"})

    return relay.IRModule({name: rewrite(f, change) for name, f in mod.functions.items()})


@cache
def _operators() -> dict[str, relay.IRModule]:
    """A program of each call that the operators' tests have."""
    made = {}
    for i, case in enumerate((*CASES, *RUN_CASES)):
        params: list[Any] = []

        def of(arg: Any, params: list[Any] = params) -> Any:
            if isinstance(arg, tuple):
                return relay.Tuple(tuple(map(of, arg)))
            array = np.asarray(arg)
            params.append(relay.var(f"x{len(params)}", shape=array.shape, dtype=str(array.dtype)))
            return params[-1]

        body = call(case.op, *map(of, case.args), **case.attrs)
        mod = relay.IRModule({"main": relay.Function(tuple(params), body)})
        made[f"{i}-{case.op}"] = typed(mod) if "backward_weight" in case.op else mod
    return made


@pytest.mark.longer_cases("10", "11", "17", "18")
@pytest.mark.parametrize("minor", RELEASES)
def test_operators(minor: int) -> None:
    """Each operator with its attributes, those of the metadata included."""
    count = 0
    for mod in _operators().values():
        attrs = mod["main"].body.attrs
        if known(mod, minor) and not (minor <= 11 and attrs.get("reduction") not in _OLD_WRITES):
            _reads(mod, minor)
            count += 1
    assert count > 0.9 * len(_operators())


_OLD_WRITES = (None, "update", "add", "mean", "sum", "none")  # of scatter_elements; of nll_loss


def test_grouped_gradients_of_08_stay_what_they_were() -> None:
    """Between one group and as many as channels its composite is no weight gradient."""
    x, g = "Tensor[(2, 4, 5, 5), float32]", "Tensor[(2, 6, 5, 5), float32]"
    attrs = "padding=[1, 1, 1, 1], groups=2, channels=6, kernel_size=[3, 3]"
    layouts = 'kernel_layout="NCHW", out_layout="OIHW"'
    body = f"nn.conv2d_backward_weight(%g, %x, {attrs}, {layouts})"
    mod = typed(relay.fromtext(f"{HEADER}def @main(%g: {g}, %x: {x}) {{ {body} }}"))
    old = typed(relay.fromtext(printed(typed(rewritten(mod, 8)), 8), release="0.8"))
    assert "backward_weight" not in relay.astext(old)
    with pytest.warns(UserWarning, match="pairs group g with the input channels"):
        assert relay.structural_equal(T.RaiseConvBackward()(old), old)
    rng = np.random.default_rng(4)
    inputs = {p.name: rng.standard_normal(p.type_annotation.shape) for p in mod["main"].params}
    a, b = (evaluate(m["main"], inputs) for m in (old, mod))
    assert np.abs(a - b).max() > 0.1 * np.abs(b).max()


@pytest.mark.parametrize("seed", range(6))
def test_random_program(seed: int) -> None:
    """Constants of all dtypes, with their types' comments."""
    mod = program(seed)
    for minor in RELEASES:
        _reads(mod, minor)


# ---- whose text it is ----------------------------------------------------------------------------

VERSIONS = {
    "0.8.0": Release(8, 8), "0.8": Release(8, 8), "v0.11.1": Release(11, 11),
    "0.9.dev0": Release(8, 9), "0.9.dev1310+g1c2e2f4f6": Release(8, 9),
    "0.8.1+company": Release(8, 8), "0.20.dev0": Release(19, 20), "0.19.0.post1": Release(19, 19),
    "0.10.0.rc0": Release(10, 10),
}  # fmt: skip


def test_versions() -> None:
    assert {version: Release.named(version) for version in VERSIONS} == VERSIONS
    assert Release.named("a fork") is None
    for given in ("a fork", "1.0", ""):
        with pytest.raises(ValueError, match="release is a version of TVM"):
            relay.fromtext(HEADER + "def @main() { 1 }", release=given)


def test_metadata_says_the_release() -> None:
    text = PAIRS["scattered"].text
    assert release_of(None, text) == Release(10, 10)
    assert release_of("0.9", text) == Release(9, 9)  # the caller knows better
    assert release_of(None, text.replace("0.10.0", "a fork's")) is None


SQUARE = "%x: Tensor[(1, 4, 5, 5), float32], %w: Tensor[(4, 4, 3, 3), float32]"


def _layouts(body: str, release: str | None, params: str = SQUARE) -> list[Any]:
    mod = relay.fromtext(f"{HEADER}def @main({params}) {{ {body} }}", release=release)
    calls = [n for n in relay.ast.post_order(mod["main"]) if isinstance(n, relay.Call)]
    return [call.attrs.kernel_layout for call in calls]


@pytest.mark.parametrize(
    ("release", "default", "written"),
    [("0.7", "IOHW", None), ("0.8", "OIHW", "HWOI"), ("0.11.1", "OIHW", "HWOI"),
     ("0.12", "IOHW", "HWOI"), ("0.19", "IOHW", "HWOI"), (None, "IOHW", "HWOI")],
)  # fmt: skip
def test_layout_of_a_transposed_weight(
    release: str | None, default: str, written: str | None
) -> None:
    assert _layouts("nn.conv2d_transpose(%x, %w)", release) == [default]
    if written is not None:
        assert _layouts('nn.conv2d_transpose(%x, %w, kernel_layout="HWOI")', release) == [written]
    last = 'nn.conv2d_transpose(%x, %w, data_layout="NHWC", kernel_layout="HWOI")'
    assert _layouts(last, release) == [written or "HWIO"]


@pytest.mark.parametrize("op", ["nn.conv1d_transpose", "nn.conv3d_transpose"])
def test_names_of_a_transposed_weights_axes(op: str) -> None:
    for release in ("0.8", "0.11", "0.12", "0.12.dev0", None):
        assert _layouts(f"{op}(%x, %w)", release) == [{"1": "IOW", "3": "IODHW"}[op[7]]]
    last = f'{op}(%x, %w, data_layout="NDHWC", kernel_layout="DHWIO")'
    for release, read in (("0.11", "DHWOI"), ("0.12", "DHWIO"), (None, "DHWIO")):
        assert _layouts(last, release) == [read]


# (text, release, the message)
REFUSED = {
    "a development version in doubt": (
        "nn.conv2d_transpose(%x, %w)", "0.12.dev0",
        r"nn\.conv2d_transpose: from 0\.8 to 0\.11 .* of TVM 0\.11 or 0\.12: name the one",
    ),
    "names in doubt": (
        'nn.conv1d_transpose(%x, %w, kernel_layout="IOW")', "0.12.dev5",
        r"nn\.conv1d_transpose: until 0\.11 its weight's I was called O",
    ),
    "a layout that kernels did not know": (
        'nn.conv1d_transpose(%x, %w, kernel_layout="IOW")', "0.11",
        r"kernel_layout='IOW', of TVM 0\.11 and older: its type and its kernel read",
    ),
    "the same of two dimensions": (
        'nn.conv2d_transpose(%x, %w, kernel_layout="IOHW")', "0.7", r"of TVM 0\.7 and older: its",
    ),
    "another's, and nobody says whose": (
        'nn.conv2d_transpose(nn.conv2d_transpose(%x, %w, kernel_layout="IOHW"), %w)', None,
        r"has nn\.conv2d_transpose with kernel_layout=IOHW, its default, so it is not 0\.19",
    ),
    "an old number, and a layout": (
        "f(nn.conv2d_transpose(%x, %w), 1 /* ty=int64 */)", None,
        r"OIHW by default; the text has an int64 written without i64",
    ),
    "types as 0.8 has them, and a layout": (
        "nn.conv2d_transpose(%x, %w) /* ty=Tensor[(1, 4, 7, 7), float32] */", None,
        r"OIHW by default; the text has types of calls and none of variables, as 0\.8 has, so",
    ),
    "an old operator, and a string": (
        'scatter(%x, %x, f(%w, a="\\\\n"), axis=1)', None,
        r"a backslash in a string was itself; the text has the operator scatter",
    ),
    "an old operator in a newer text": (
        "scatter(%x, %w, %x, axis=1)", "0.12",
        r"scatter in a text of a later release, of TVM 0\.11 and older; since then it is scat",
    ),
    "a number without its width": (
        "f(1 /* ty=int64 */)", "0.9", "a constant of int32.* with another's type",
    ),
    "resize": ("image.resize(%x, size=[2, 2])", None, r"operator image\.resize, of TVM 0\.7 and"),
    "resize alone": ("image.resize", None, r"operator image\.resize, of TVM 0\.7 and"),
    "a shape function": ("vm.shape_func(%x)", None, r"vm\.shape_func, of TVM 0\.8 and older"),
    "an NPU": ("contrib.ethosu.pooling(%x)", None, r"contrib\.ethosu\.pooling, of TVM 0\.18"),
    "a device": (
        "on_device(%x, device_type=1, is_fixed=True)", None,
        r"on_device's device_type, of TVM 0\.8",
    ),
    "devices of a function": (
        "fn (%y, param_device_types=[1], result_device_type=1) { %y }", None,
        r"the function's param_device_types, of TVM 0\.8",
    ),
    "a pad's value": (
        "nn.pad(%x, pad_width=[[0, 0]], pad_value=1f)", None, r"pad_value, of TVM 0\.7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    body, release, message = REFUSED[what]
    with pytest.raises(relay.RelayTextError, match=message):
        relay.fromtext(f"{HEADER}def @main({SQUARE}) {{ {body} }}", release=release)


def test_what_was_read_is_printed_as_todays() -> None:
    """Beside a layout that the program leaves out too: no text of ours is taken for another's."""
    old = f'{HEADER}def @main({SQUARE}) {{ nn.conv2d_transpose(%x, %w, kernel_layout="IOHW") }}'
    main = relay.fromtext(old)["main"]
    body = relay.nn.conv2d_transpose(main.body, main.params[1], kernel_layout="IOHW")
    text = relay.astext(relay.IRModule({"main": relay.Function(main.params, body)}))
    assert "kernel_layout" not in text
    assert relay.astext(relay.fromtext(text)) == text


def test_a_program_of_08_without_metadata_is_not_guessed() -> None:
    with pytest.raises(relay.RelayTextError, match=r"from 0\.8 to 0\.11 its weight was OIHW"):
        relay.fromtext(PAIRS["groups"].text)


def test_marks_alone_refuse_nothing() -> None:
    typed_call = "nn.conv2d_transpose(%x, %w) /* ty=Tensor[(1, 4, 7, 7), float32] */"
    typed_too = SQUARE.replace("%w", "%v: float32 /* ty=float32 */, %w")
    assert _layouts(typed_call, None, typed_too) == ["IOHW"]
    assert _layouts('nn.conv2d_transpose(%x, %w, kernel_layout="IOHW")', None) == ["IOHW"]
    body = 'let %y = f(%x, a="\\\\n"); nn.conv2d_transpose(%x, %w)'
    mod = relay.fromtext(f"{HEADER}def @main({SQUARE}) {{ {body} }}")
    assert mod["main"].body.value.attrs["a"] == "\\n"


# ---- strings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["a\\b", "\\", "C:\\dir\\", "two\nlines", "/* no */ \\", "// \\n"]
)
def test_strings_of_08_are_what_they_hold(value: str) -> None:
    body = f'(f(%x, a="{value}"), f(%w, a="\\x")) // " \\'
    mod = relay.fromtext(f"{HEADER}def @main({SQUARE}) {{ {body}\n }}", release="0.8")
    assert [field.attrs["a"] for field in mod["main"].body.fields] == [value, "\\x"]


def test_metadata_of_08_keeps_its_escapes() -> None:
    nodes = """{"type_key": "Map", "keys": ["relay.attrs.ScatterNDAttrs"], "data": [2]},
      {"type_key": "Array", "data": [3]},
      {"type_key": "relay.attrs.ScatterNDAttrs", "attrs": {"mode": "4"}},
      {"type_key": "runtime.String", "repr_str": "a\\"d\\\\d"}"""
    metadata = f'{{"root": 1, "nodes": [{{"type_key": ""}}, {nodes}], "b64ndarrays": []}}'
    body = 'scatter_nd(f(%x, a="\\"), %w, %x, meta[relay.attrs.ScatterNDAttrs][0])'
    text = f"{HEADER}def @main({SQUARE}) {{ {body} }}\n#[metadata]\n{metadata}"
    found = relay.fromtext(text, release="0.8")["main"].body
    assert (found.attrs["mode"], found.args[0].attrs["a"]) == ('a"d\\d', "\\")


def test_a_text_without_its_metadata() -> None:
    with pytest.raises(relay.RelayTextError, match=r"\(no #\[metadata\] section: mod\.ast"):
        relay.fromtext(f"{HEADER}def @main({SQUARE}) {{ f(meta[relay.Constant][0]) }}")


def test_another_operators_metadata_stays() -> None:
    nodes = """{"type_key": "Map", "keys": ["relay.attrs.TriluAttrs"], "data": [2]},
      {"type_key": "Array", "data": [3]},
      {"type_key": "relay.attrs.TriluAttrs", "attrs": {"upper": "0"}}"""
    metadata = f'{{"root": 1, "nodes": [{{"type_key": ""}}, {nodes}], "b64ndarrays": []}}'
    body = "(trilu(%x, meta[relay.attrs.TriluAttrs][0]), f(%x, meta[relay.attrs.TriluAttrs][0]))"
    text = f"{HEADER}def @main({SQUARE}) {{ {body} }}\n#[metadata]\n{metadata}"
    mod = relay.fromtext(text)
    own, other = mod["main"].body.fields
    assert type(own.attrs) is not relay.MetaAttrs
    assert dict(own.attrs) == {"upper": False}
    assert isinstance(other.attrs, relay.MetaAttrs)
    assert relay.structural_equal(relay.fromtext(relay.astext(mod)), mod)


def test_the_tables_know_their_operators() -> None:
    known_attrs = [{attr.name for attr in op.attrs} for op in REGISTRY.values()]
    for key, fields in FIELDS.items():
        assert any(fields.keys() <= names for names in known_attrs), key
    assert all(row.name in REGISTRY for row in RENAMED.values())
    assert not GONE.keys() & REGISTRY.keys()
    for op, attr in GONE_ATTRS:
        assert op not in REGISTRY or attr not in {a.name for a in lookup(op).attrs}


def test_an_expression_has_a_release_too() -> None:
    text = "free_var %x; free_var %w; nn.conv2d_transpose(%x, %w)"
    assert relay.parse_expr(text, release="0.8").attrs["kernel_layout"] == "OIHW"
    assert "kernel_layout" not in relay.parse_expr(text).attrs
