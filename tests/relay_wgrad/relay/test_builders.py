"""Builders: names, argument orders and defaults of Relay 0.19, and the calls they give."""

import ast as python_ast
import inspect
import pydoc
import re

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay.records import REGISTRY
from tests.support.relay import stubs
from tests.support.relay.op_cases import CASES
from tests.support.relay.relay_signatures import SIGNATURES

_LINES = re.sub(r"\n +", " ", SIGNATURES).strip().splitlines()


def _builder(name):
    found = relay
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _transcribed(line):
    """(name, [(argument, default or inspect's mark for none)])."""
    function = python_ast.parse(f"def f{line[line.index('(') :]}: pass").body[0]
    names = [a.arg for a in function.args.args]
    values = [python_ast.literal_eval(d) for d in function.args.defaults]
    none = [inspect.Parameter.empty] * (len(names) - len(values))
    return line[: line.index("(")], list(zip(names, none + values, strict=True))


@pytest.mark.parametrize("line", _LINES, ids=lambda line: line[: line.index("(")])
def test_signature(line):
    name, wanted = _transcribed(line)
    for where in (_builder(name), _builder(f"op.{name}")):
        got = [(p.name, p.default) for p in inspect.signature(where).parameters.values()]
        assert got == wanted
        assert where.__name__ == name.rpartition(".")[2]
        assert where.__doc__


def test_every_operator_of_the_table_has_a_builder():
    transcribed = {line[: line.index("(")] for line in _LINES}
    ours = {"nn.conv3d_backward_weight", "contrib_reverse_reshape"}  # the latter: reverse_reshape
    ours |= {name for name in REGISTRY if name.startswith("dyn.")}  # chosen by the arguments
    assert {op.name for op in REGISTRY.values() if not op.open_attrs} - ours <= transcribed


@pytest.mark.parametrize("name", stubs.NAMES)
def test_stubs_are_the_records(name, request):
    path = stubs.FOLDER / f"{name}.pyi"
    if request.config.getoption("--update-golden"):
        path.write_text(stubs.stub(name), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == stubs.stub(name), f"{path} (--update-golden)"


def test_wrong_arguments_name_the_operator():
    for wrong in (lambda: relay.exp(), lambda: relay.nn.softmax(X, axes=1)):
        with pytest.raises(TypeError, match=r"^(exp|nn.softmax): .*(missing|unexpected)"):
            wrong()


def test_help_shows_arguments_and_meaning():
    text = pydoc.plain(pydoc.render_doc(relay.nn.conv2d))
    assert "kernel_layout: 'str' = 'OIHW'" in text
    assert "(top, left, bottom, right)" in text
    assert "abs(data: 'Expr')" in pydoc.plain(pydoc.render_doc(relay.abs))


# Where a builder's arguments are called otherwise than the operator's or its attributes.
RENAMED = {
    "clip": {"data": "a"},
    "variance": {"mean": "with_mean"},
    **{
        f"random.{name}": {"out_shape": "shape", "out_dtype": "dtype"}
        for name in ("threefry_generate", "uniform", "normal")
    },
    "unique": {"sorted": "is_sorted"},
    "unravel_index": {"data": "indices"},
    "matrix_set_diag": {"input": "data"},
    **{
        f"nn.conv{rank}d_backward_weight": {
            "data_layout": "grad_layout",
            "kernel_layout": "data_layout",
            "out_layout": "kernel_layout",
        }
        for rank in (2, 3)
    },
}


# Whose builder leaves padding as it is.
AS_GIVEN = ("nn.max_pool2d_grad", "nn.avg_pool2d_grad", "image.dilation2d", "nn.correlation")


def _expr(value):
    if isinstance(value, tuple):
        return relay.Tuple(tuple(map(_expr, value)))
    return relay.const(value, str(value.dtype))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_arguments_arrive_as_attributes(case):
    """Each call of the operators' tests, made by keyword, has that call's attributes and type."""
    op, build = REGISTRY[case.op], _builder(case.op.removeprefix("contrib_"))
    names = RENAMED.get(case.op, {})
    takes = inspect.signature(build).parameters
    values = op.read(case.attrs)
    given = {names.get(n, n): _expr(a) for n, a in zip(op.inputs, case.args, strict=True)}
    for attr in op.attrs:
        name = names.get(attr.name, attr.name)
        if name in takes and name not in given:
            given[name] = values[attr.name]
        elif name not in takes:
            # Relay's builder has no such argument.
            assert case.op in (
                "broadcast_to",
                "collapse_sum_to",
                "nn.max_pool2d_grad",
                "nn.avg_pool2d_grad",
                "matrix_set_diag",
                "nn.space_to_depth",
            )
    if case.op == "matrix_set_diag":
        align = f"RIGHT_{'RIGHT' if values['sub_diag_right_align'] else 'LEFT'}"
        given |= {"k": (values["k1"], values["k2"]), "align": align}
    made = build(**given)
    made = made.astuple() if isinstance(made, relay.TupleWrapper) else made
    if case.op == "nn.dropout":
        made = made.tuple_value
    if made.op.name == case.op:
        got = op.read(made.attrs)
        for name in set(values) - {"dilation"}:
            want = values[name]
            if name == "padding" and case.op not in AS_GIVEN:
                ends = next((n for axes, n in (("1d", 2), ("3d", 6)) if axes in case.op), 4)
                want = want * (ends // len(want))
            assert got[name] == want, name
    else:
        assert (case.op, made.op.name) == ("nn.matmul", "nn.dense")
    # The case's own types: arrays are constants here.
    types = [relay.testing.run_infer_type(_expr(a)).checked_type for a in case.args]
    wanted = op.infer(types, case.attrs)
    assert relay.testing.run_infer_type(made).checked_type == wanted


def _x(*shape, dtype="float32", name="x"):
    return relay.var(name, shape=shape, dtype=dtype)


X, W, G = _x(2, 8, 9, 9), _x(4, 8, 3, 3, name="w"), _x(2, 4, 9, 9, name="g")
NHWC = _x(2, 9, 9, 8)
V = _x(8, name="v")
M = _x(5, 6)
I = _x(3, dtype="int32", name="i")  # noqa: E741

# What is built, and its last line of text.
CALLS = [
    (lambda: relay.nn.conv2d(X, W), "nn.conv2d(%x, %w, padding=[0, 0, 0, 0])"),
    (
        lambda: relay.nn.conv2d(X, W, 2, 1, 1, kernel_size=3, out_dtype="float32"),
        (
            "nn.conv2d(%x, %w, strides=[2, 2], padding=[1, 1, 1, 1], kernel_size=[3, 3],"
            ' out_dtype="float32")'
        ),
    ),
    (
        lambda: relay.nn.conv2d(X, W, padding=(1, 2)),
        "nn.conv2d(%x, %w, padding=[1, 2, 1, 2])",
    ),
    (
        lambda: relay.nn.conv2d(X, W, padding=[0, 1, 2, 3], channels=4),
        "nn.conv2d(%x, %w, padding=[0, 1, 2, 3], channels=4)",
    ),
    (
        lambda: relay.nn.conv2d_transpose(G, W, (2, 2), (1, 1), output_padding=(1, 1)),
        "nn.conv2d_transpose(%g, %w, strides=[2, 2], output_padding=[1, 1], padding=[1, 1, 1, 1])",
    ),
    (
        lambda: relay.nn.conv2d_backward_weight(G, X, padding=1, kernel_size=(3, 3)),
        (
            "nn.conv2d_backward_weight(%g, %x, padding=[1, 1, 1, 1], kernel_size=[3, 3],"
            ' kernel_layout="NCHW", out_layout="OIHW")'
        ),
    ),
    (
        lambda: relay.nn.conv2d_backward_weight(
            G, X, grad_layout="NHWC", data_layout="NHWC", kernel_layout="OHWI"
        ),
        (
            "nn.conv2d_backward_weight(%g, %x, padding=[0, 0, 0, 0],"
            ' data_layout="NHWC", kernel_layout="NHWC", out_layout="OHWI")'
        ),
    ),
    (
        lambda: relay.nn.conv2d_backward_weight(G, X, grad_layout="NHWC", kernel_layout="HWIO"),
        (
            "nn.conv2d_backward_weight(%g, %x, padding=[0, 0, 0, 0],"
            ' data_layout="NHWC", kernel_layout="NCHW", out_layout="HWIO")'
        ),
    ),
    (
        lambda: relay.nn.max_pool2d(X, 3, 2, padding=1),
        "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])",
    ),
    (
        lambda: relay.nn.avg_pool2d(NHWC, (2, 2), layout="NHWC", count_include_pad=True),
        (
            "nn.avg_pool2d(%x, pool_size=[2, 2], padding=[0, 0, 0, 0],"
            ' layout="NHWC", count_include_pad=True)'
        ),
    ),
    (lambda: relay.nn.adaptive_avg_pool2d(X), "nn.adaptive_avg_pool2d(%x)"),
    (
        lambda: relay.nn.adaptive_max_pool2d(X, (3, 3)),
        "nn.adaptive_max_pool2d(%x, output_size=[3, 3])",
    ),
    (lambda: relay.nn.dense(M, M), "nn.dense(%x, %x, units=None)"),
    (lambda: relay.nn.dense(M, M, 5), "nn.dense(%x, %x, units=5)"),
    (lambda: relay.nn.matmul(M, M, transpose_b=True), "nn.dense(%x, %x, units=None)"),
    (
        lambda: relay.nn.matmul(M, M, transpose_a=True),
        "nn.matmul(%x, %x, units=None, transpose_a=True)",
    ),
    (lambda: relay.nn.batch_matmul(M, M), "nn.batch_matmul(%x, %x, transpose_b=True)"),
    (lambda: relay.nn.leaky_relu(M), "nn.leaky_relu(%x, alpha=0.01f)"),
    (lambda: relay.nn.lrn(X), "nn.lrn(%x, alpha=1e-05f)"),
    (lambda: relay.nn.dropout(M, 0.25), "%0.0"),
    (lambda: relay.nn.batch_norm(X, V, V, V, V, epsilon=1e-3)[1], "%0.1"),
    (lambda: relay.nn.batch_norm(X, V, V, V, V)[-1], "%0.2"),
    (lambda: relay.nn.group_norm(X, V, V, 4), "nn.group_norm(%x, %v, %v, num_groups=4)"),
    (lambda: relay.nn.pad(M, ((0, 1), (2, 3))), "nn.pad(%x, 0, pad_width=[[0, 1], [2, 3]])"),
    (
        lambda: relay.nn.pad(M, ((0, 1), (2, 3)), 1.5),
        "nn.pad(%x, 1.5f, pad_width=[[0, 1], [2, 3]])",
    ),
    (
        lambda: relay.nn.upsampling(X, 2, 2),
        "nn.upsampling(%x, scale_h=2f, scale_w=2f)",
    ),
    (lambda: relay.reshape(M, 30), "reshape(%x, newshape=[30])"),
    (lambda: relay.reshape(M, (-1, 2)), "reshape(%x, newshape=[-1, 2])"),
    (lambda: relay.reshape(M, relay.const([3, 10])), "reshape(%x, newshape=[3, 10])"),
    (lambda: relay.transpose(M), "transpose(%x, axes=None)"),
    (lambda: relay.transpose(M, (1, 0)), "transpose(%x, axes=[1, 0])"),
    (lambda: relay.squeeze(M, 0), "squeeze(%x, axis=[0])"),
    (lambda: relay.sum(M), "sum(%x)"),
    (lambda: relay.sum(M, 1, True), "sum(%x, axis=[1], keepdims=True)"),
    (lambda: relay.mean(M, [0], exclude=True), "mean(%x, axis=[0], exclude=True)"),
    (lambda: relay.argmax(M, 1, False, False), "argmax(%x, axis=[1])"),
    (lambda: relay.variance(M, 1), "variance(%x, %0, axis=[1])"),
    (lambda: relay.variance(M, with_mean=V), "variance(%x, %v)"),
    (lambda: relay.std(M), "sqrt(%1)"),
    (lambda: relay.mean_variance(M, 1)[1], "%3.1"),
    (lambda: relay.mean_std(M, 1, True)[0], "%3.0"),
    (lambda: relay.logsumexp(M, 1), "squeeze(%5, axis=[1])"),
    (lambda: relay.take(M, I, 1), "take(%x, %i, axis=1)"),
    (lambda: relay.take(M, I, mode="wrap"), 'take(%x, %i, mode="wrap")'),
    (lambda: relay.split(M, 2)[1], "%0.1"),
    (lambda: relay.split(M, (1, 3), axis=1)[2], "%0.2"),
    (lambda: relay.concatenate([M, M], 0), "concatenate(%0)"),
    (lambda: relay.concatenate(relay.split(M, 5), axis=1), "concatenate(%6, axis=1)"),
    (lambda: relay.stack((M, M), 1), "stack(%0, axis=1)"),
    (
        lambda: relay.strided_slice(M, [0, 1], [5, 6]),
        "strided_slice(%x, begin=[0, 1], end=[5, 6], strides=[1], axes=None)",
    ),
    (
        lambda: relay.strided_slice(M, [1], [2], [1], [0], "size"),
        'strided_slice(%x, begin=[1], end=[2], strides=[1], slice_mode="size", axes=[0])',
    ),
    (lambda: relay.repeat(M, 2, 0), "repeat(%x, repeats=2, axis=0)"),
    (lambda: relay.clip(M, 0, 6), "clip(%x, a_min=0f, a_max=6f)"),
    (lambda: relay.zeros((2, 3), "float32"), 'zeros(shape=[2, 3], dtype="float32")'),
    (lambda: relay.zeros(3, "int32"), 'zeros(shape=[3], dtype="int32")'),
    (
        lambda: relay.full(relay.const(1.0), (2,), "float32"),
        'full(1f, shape=[2], dtype="float32")',
    ),
    (
        lambda: relay.one_hot(I, relay.const(1.0), relay.const(0.0), 4, -1, "float32"),
        'one_hot(%i, 1f, 0f, depth=4, dtype="float32")',
    ),
    (lambda: relay.cast(M, "float16"), 'cast(%x, dtype="float16")'),
    (lambda: M.astype("int8"), 'cast(%x, dtype="int8")'),
    (lambda: M + M * M, "add(%x, %0)"),
    (lambda: M - M, "subtract(%x, %x)"),
    (lambda: M / M, "divide(%x, %x)"),
    (lambda: -M, "negative(%x)"),
    (lambda: M < M, "less(%x, %x)"),
    (lambda: M <= M, "less_equal(%x, %x)"),
    (lambda: M > M, "greater(%x, %x)"),
    (lambda: M >= M, "greater_equal(%x, %x)"),
    (lambda: relay.op.get("add")(M, M), "add(%x, %x)"),
]


@pytest.mark.parametrize(
    ("build", "text"), CALLS, ids=[text.partition("(")[0] for _, text in CALLS]
)
def test_call_as_relay_prints_it(build, text):
    assert build().astext().splitlines()[-1] == text


def test_gradient_of_a_pool_and_collapse_sum_to_have_their_attributes_as_metadata():
    made = relay.nn.avg_pool2d_grad(X, X, (9, 9), (1, 1))
    assert made.attrs.type_key == "relay.attrs.AvgPool2DAttrs"
    assert made.attrs["dilation"] == ()
    made = relay.collapse_sum_to(M, (1, 6))
    assert made.attrs.type_key == "relay.attrs.InitOpAttrs"
    assert dict(made.attrs) == {"shape": (1, 6), "dtype": ""}
    assert made.args[1].data.tolist() == [1, 6]


WRONG = [
    (lambda: relay.nn.conv2d(X, 3), TypeError, r"nn.conv2d: weight must be .*expression, got 3"),
    (lambda: relay.nn.conv2d(X, np.ones(3)), TypeError, "nn.conv2d: weight must .*relay.const"),
    (lambda: relay.add(M, 1), TypeError, "add: rhs must be a Relay expression, got 1"),
    (lambda: relay.nn.conv2d(X, W, strides="2"), TypeError, "nn.conv2d: strides must.*got '2'"),
    (lambda: relay.nn.conv2d(X, W, padding=(1, 2, 3)), ValueError, r"padding.*\(1, 2, 3\)"),
    (lambda: relay.nn.conv2d(X, W, padding=None), TypeError, "nn.conv2d: padding.*None"),
    (lambda: relay.nn.conv2d(X, W, padding=1.5), TypeError, "nn.conv2d: padding.*1.5"),
    (lambda: relay.nn.conv2d(X, W, groups=True), TypeError, "groups must be an integer, got True"),
    (lambda: relay.repeat(M, M, 0), ValueError, "repeat: repeats must be known"),
    (lambda: relay.reshape(M, None), TypeError, "reshape: newshape"),
    (lambda: relay.concatenate([], 0), ValueError, "concatenate: data must not be empty"),
    (lambda: relay.concatenate(3, 0), TypeError, "concatenate: data must be a tuple"),
    (lambda: relay.concatenate([M, 3], 0), TypeError, "Tuple: a field must be .*got 3"),
    (lambda: relay.split(M, "a"), TypeError, "split: indices_or_sections"),
    (lambda: relay.cast(M, "flaot"), TypeError, "cast: dtype must be the name of a dtype"),
    (lambda: M + 1, TypeError, 'add: convert "1" with `const` first'),
    (lambda: 2.0 * M, TypeError, 'multiply: convert "2.0" with `const` first'),
    (lambda: M + "a", TypeError, "add: type .*str.* not supported"),
    (lambda: M < 1, TypeError, 'less: convert "1" with `const` first'),
    (lambda: relay.nn.relu("x"), TypeError, "nn.relu: data must be .*'x'"),
]


@pytest.mark.parametrize(("build", "error", "message"), WRONG)
def test_wrong_arguments_are_named(build, error, message):
    with pytest.raises(error, match=message):
        build()
