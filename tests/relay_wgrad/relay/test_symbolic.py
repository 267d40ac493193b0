"""Symbolic sizes: arithmetic, types, relations, text."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import tirx

from relay_wgrad import relay
from relay_wgrad.relay import te
from relay_wgrad.relay.dims import ANY, agree, as_dim, divides, unified

N, M, H = te.size_var("n"), te.size_var("m"), te.size_var("h")
n, m, h = as_dim(N), as_dim(M), as_dim(H)


def of(*shape: Any, dtype: str = "float32") -> relay.TensorType:
    return relay.TensorType(shape, dtype)


def inferred(expr: relay.Expr) -> relay.Type:
    return relay.testing.run_infer_type(expr).checked_type


def x(*shape: Any, name: str = "x", dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


def test_arithmetic() -> None:
    assert (n + n) // 2 == n
    assert (n + m) - m == n
    assert n - n == 0
    assert (n * m) // m == n
    # Products of sums, which TVM's analyzer leaves as they are.
    half = h // 2
    assert (half + 1) * m * 4 == (half * 4 + 4) * m
    assert 3 - n != n - 3
    assert -n + 2 * n == n
    assert n + ANY is ANY
    assert n != m
    assert n != te.size_var("n")
    assert n != 5
    assert n != "n"
    with pytest.raises(TypeError, match="only the run knows whether n % 2 is zero"):
        bool(n % 2)


def test_what_may_be_the_same() -> None:
    assert agree(n, m)
    assert agree(n, 5)
    assert agree(n, ANY)
    assert not agree(n, n + 1)
    assert not agree(2, 3)
    assert divides(3, n)
    assert divides(3, n * 6)
    assert not divides(3, n * 6 + 1)
    assert unified(n, 5) == 5
    assert unified(n, n) == n
    assert unified(n, ANY) is ANY
    assert unified(n, m) is None
    assert unified(n + 1, 5) is None


def test_types() -> None:
    assert of(N, 3) == of(N, 3)
    assert hash(of(N + N, 3)) == hash(of(2 * N, 3))
    assert of(N, 3) != of(M, 3)
    assert of(N, 3) != of(4, 3)
    assert str(of(N, N * 2, ANY)) == "Tensor[(n, n * 2, ?), float32]"
    assert of(tirx.IntImm("int64", 4)).shape == (4,)
    assert relay.TensorType(N).shape == (n,)
    with pytest.raises(ValueError, match="only the run knows"):
        _ = of(N, 3).concrete_shape
    with pytest.raises(TypeError, match="a size must be an integer, an integer expression"):
        of(tirx.Var("f", "float32"))
    with pytest.raises(ValueError, match="at least 0"):
        of(N - N - 1)


D = x(N, 4, H, 8)
ROWS: list[tuple[relay.Expr, relay.Type]] = [
    (relay.add(D, x(4, 1, 1)), of(N, 4, H, 8)),
    (relay.add(x(N, 1), x(1, M)), of(N, M)),
    (relay.less(D, D), of(N, 4, H, 8, dtype="bool")),
    (relay.nn.conv2d(D, x(6, 4, 3, 3), padding=1), of(N, 6, H, 8)),
    (relay.nn.conv2d(D, x(6, 4, 3, 3), strides=2), of(N, 6, (H - 3) // 2 + 1, 3)),
    (relay.nn.conv2d_transpose(D, x(4, 6, 3, 3), strides=2), of(N, 6, H * 2 + 1, 17)),
    (relay.nn.max_pool2d(D, 2, 2), of(N, 4, (H - 2) // 2 + 1, 4)),
    (relay.nn.global_avg_pool2d(D), of(N, 4, 1, 1)),
    (relay.nn.upsampling(D, 2, 2), of(N, 4, H * 2, 16)),
    (relay.nn.dense(x(N, M), x(3, M)), of(N, 3)),
    (relay.nn.batch_matmul(x(N, M, 3), x(N, H, 3)), of(N, M, H)),
    (relay.nn.batch_flatten(D), of(N, H * 32)),
    (relay.reshape(D, (0, -1)), of(N, H * 32)),
    (relay.reshape(D, (0, 0, -3)), of(N, 4, H * 8)),
    (relay.reshape(D, (-1,)), of(N * H * 32)),
    (relay.reshape(D, (-4, -1, 2, -2)), of(N // 2, 2, 4, H, 8)),
    (relay.reshape(x(N, M, H), (0, 0, -1)), of(N, M, H)),
    (relay.concatenate([D, D], 2), of(N, 4, H * 2, 8)),
    (relay.concatenate([D, x(N, 4, 3, 8)], 2), of(N, 4, H + 3, 8)),
    (relay.stack([D, D], 0), of(2, N, 4, H, 8)),
    (relay.nn.pad(D, ((0, 0), (0, 0), (1, 2), (0, 0))), of(N, 4, H + 3, 8)),
    (relay.strided_slice(D, [0, 1], [2**31 - 1, 3]), of(N, 2, H, 8)),
    (relay.strided_slice(D, [0, 0, 1], [2**31 - 1, 4, 3]), of(N, 4, ANY, 8)),
    (relay.tile(D, (2, 1, 1, 1)), of(N * 2, 4, H, 8)),
    (relay.repeat(D, 3, 2), of(N, 4, H * 3, 8)),
    (relay.sum(D, [1, 3]), of(N, H)),
    (relay.transpose(D), of(8, H, 4, N)),
    (relay.squeeze(x(N, 1, M), [1]), of(N, M)),
    (relay.take(x(N, M), x(3, dtype="int32"), axis=0), of(3, M)),
    (relay.one_hot(x(N, dtype="int32"), relay.const(1), relay.const(0), 5, -1, "int32"),
     of(N, 5, dtype="int32")),
    (relay.layout_transform(D, "NCHW", "NCHW4c"), of(N, 1, H, 8, 4)),
    (relay.layout_transform(D, "NCHW", "NHWC"), of(N, H, 8, 4)),
    (relay.split(D, 2, 1)[0], of(N, 2, H, 8)),
    (relay.nn.bias_add(D, x(4)), of(N, 4, H, 8)),
    (relay.nn.cross_entropy(x(N, M), x(N, M)), of()),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "want"), ROWS, ids=lambda v: getattr(v, "op", v))
def test_relations(expr: relay.Expr, want: relay.Type) -> None:
    assert inferred(expr) == want


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (relay.add(x(N), x(M)), "add: Incompatible broadcast type"),
        (relay.add(x(N), x(5)), "add: Incompatible broadcast type"),
        (relay.nn.dense(x(2, N), x(3, N + 1)), "nn.dense: the axes to sum over must match"),
        (relay.nn.bias_add(D, x(H), 0), "nn.bias_add: bias must be"),
        (relay.squeeze(x(N, 1)), "squeeze: axis needs to be defined"),
        (
            relay.split(x(2 * N + 1), 2).astuple(),
            "split: indices_or_sections need to be able to divide",
        ),
    ],
)
def test_refusals(expr: relay.Expr, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        inferred(expr)


def test_weights_get_their_types() -> None:
    w = relay.var("w")
    conv = relay.nn.conv2d(D, w, channels=6, kernel_size=3)
    function = relay.testing.run_infer_type(relay.Function([D, w], conv))
    assert function.params[1].type_annotation == of(6, 4, 3, 3)
    weight = relay.var("w", relay.IncompleteType())
    dense = relay.testing.run_infer_type(relay.nn.dense(x(N, M), weight, units=3))
    assert dense.args[1].checked_type == of(3, M)


TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(meta[tir.SizeVar][0], 3, meta[tir.Var][0]), float32]) {
  nn.relu(%x)
}

#[metadata]
{
  "root": 1, 
  "nodes": [
    {
      "type_key": ""
    }, 
    {
      "type_key": "Map", 
      "keys": [
        "tir.SizeVar", 
        "tir.Var"
      ], 
      "data": [2, 6]
    }, 
    {
      "type_key": "Array", 
      "data": [3]
    }, 
    {
      "type_key": "tir.SizeVar", 
      "attrs": {
        "dtype": "int32", 
        "name": "4", 
        "span": "0", 
        "type_annotation": "5"
      }
    }, 
    {
      "type_key": "runtime.String", 
      "repr_str": "n"
    }, 
    {
      "type_key": "PrimType", 
      "attrs": {
        "dtype": "int32"
      }
    }, 
    {
      "type_key": "Array", 
      "data": [7]
    }, 
    {
      "type_key": "tir.Var", 
      "attrs": {
        "dtype": "int32", 
        "name": "8", 
        "span": "0", 
        "type_annotation": "9"
      }
    }, 
    {
      "type_key": "runtime.String", 
      "repr_str": "k"
    }, 
    {
      "type_key": "PrimType", 
      "attrs": {
        "dtype": "int32"
      }
    }
  ], 
  "b64ndarrays": [], 
  "attrs": {"tvm_version": "0.19.0"}
}"""  # noqa: W291


def test_text() -> None:
    data = x(N, 3, te.var("k"))
    mod = relay.IRModule({"main": relay.Function([data], relay.nn.relu(data))})
    assert relay.astext(mod) == TEXT
    back = relay.fromtext(TEXT)
    assert relay.astext(back) == TEXT
    assert relay.structural_equal(mod, back)
    assert str(back["main"].params[0].type_annotation) == "Tensor[(n, 3, k), float32]"


def test_text_of_expressions() -> None:
    conv = relay.nn.relu(relay.nn.conv2d(D, x(6, 4, 3, 3, name="w"), strides=2))
    out = relay.nn.batch_flatten(relay.concatenate([conv, conv], 0))
    mod = relay.transform.InferType()(relay.IRModule.from_expr(out))
    text = relay.astext(mod)
    back = relay.fromtext(text)
    assert relay.astext(back) == text
    assert relay.structural_equal(mod, back)
    # The variable of the parameter is that of all types.
    assert relay.astext(relay.transform.InferType()(back)) == text
    assert "meta[tir.SizeVar][1]" in text
    assert "meta[tir.SizeVar][2]" not in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("meta[tir.SizeVar][0]", "meta[tir.SizeVar][1]", "the metadata holds 1 of them"),
        ('"dtype": "int32"', '"dtype": "float32"', "a size of dtype float32"),
        ('"name": "4"', '"name": "7"', "a variable's name is a string"),
    ],
)
def test_bad_texts(old: str, new: str, words: str) -> None:
    with pytest.raises(relay.RelayTextError, match=words):
        relay.fromtext(TEXT.replace(old, new))


def test_a_size_without_a_text() -> None:
    data = x(tirx.Select(N > 3, N, M), 2)
    with pytest.raises(ValueError, match="can't be written to metadata"):
        relay.astext(relay.IRModule.from_expr(relay.Function([data], data)))


def test_structural_equality() -> None:
    def function(a: Any, b: Any) -> relay.Function:
        data = x(a, b)
        return relay.Function([data], relay.nn.relu(data), of(a, b))

    k, j = te.size_var("k"), te.var("j")
    assert relay.structural_equal(function(N, M), function(k, j))
    assert relay.structural_equal(function(N, N), function(k, k))
    assert not relay.structural_equal(function(N, N), function(k, j))
    assert not relay.structural_equal(function(N, M), function(k, k))
    assert not relay.structural_equal(function(N, 3), function(3, N))
    assert relay.structural_equal(function(N, N * 2), function(k, k + k))
    assert not relay.structural_equal(function(N, N * 2), function(k, k + 2))
    assert relay.structural_equal(of(N), of(N))
    assert not relay.structural_equal(of(N), of(M))
    assert relay.structural_equal(of(N), of(M), map_free_vars=True)
