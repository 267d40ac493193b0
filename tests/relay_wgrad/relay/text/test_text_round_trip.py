"""What TVM 0.19 printed, read and printed again: the same text, comments and metadata included."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import ast
from tests.support.relay.texts import (
    BODIES,
    HEADER,
    call_chain,
    fixture_text,
    fixture_texts,
    let_chain,
    main,
)
from tests.support.timing import seconds


@pytest.mark.parametrize("name", fixture_texts())
def test_fixture(name: str) -> None:
    text = fixture_text(name)
    mod = relay.fromtext(text)
    assert relay.astext(mod) == text
    assert relay.structural_equal(mod, relay.fromtext(relay.astext(mod)))


def test_there_are_all_programs() -> None:
    assert len(fixture_texts()) == 38


@pytest.mark.parametrize("body", BODIES)
def test_body(body: str) -> None:
    text = main(body)
    mod = relay.fromtext(text)
    assert relay.astext(mod) == text
    assert relay.structural_equal(mod, relay.fromtext(text))


# (what is written, what is printed)
FREELY = (
    ("((%x))", "%x"),
    ("f( %x , a = 1 , )", "f(%x, a=1)"),
    ("f(g(%x), (%x, 1f).0)", "%0 = (%x, 1f);\n  %1 = g(%x);\n  %2 = %0.0;\n  f(%1, %2)"),
    # A function holds nothing of its surroundings, and moves to where it is called.
    (
        "%0 = fn (%y) { %y }; %1 = fn (%z) { %0(%z) }; %1(%x)",
        "%1 = fn (%z) {\n    %0 = fn (%y) {\n      %y\n    };\n    %0(%z)\n  };\n  %1(%x)",
    ),
    ("%7 = g(%x); %3 = f(%7); %3", "%0 = g(%x);\n  f(%0)"),
    ("%0 = f(%x); %x", "%x"),
    ("let %x = %x; %x", "let %x1 = %x;\n  %x1"),
    ("f(%x); %x", "let %v_ = f(%x);\n  %x"),
    ("/* a note */ %x // and another", "%x"),
    ("f(%x /* ty=float32 */)", "f(%x)"),
    ("fn (%y,) {%y}(%x)", "%0 = fn (%y) {\n    %y\n  };\n  %0(%x)"),
    ("let %_a = %x; %_a", "let %v_a = %x;\n  %v_a"),
    ("3000000000", "3000000000i64"),
    ("--10", "10"),
    ("---0.5f", "-0.5f"),
    ("f(%x, a=---2)", "f(%x, a=-2)"),
    ("/* a /* comment */ in another */ %x /* // */", "%x"),
    ("let %y: _ = %x; %y", "let %y = %x;\n  %y"),
    ("fn (%y: _) -> _ { %y }", "fn (%y) {\n    %y\n  }"),
    # Operators between operands: `*` before `+` before `<` before `==`, from the left.
    ("%x - %x - 1f", "%0 = subtract(%x, %x);\n  subtract(%0, 1f)"),
    (
        "1f == %x < %x + 2f * %x",
        "%0 = multiply(2f, %x);\n  %1 = add(%x, %0);\n  %2 = less(%x, %1);\n  equal(1f, %2)",
    ),
    (
        "(%x + 1f) * %x.0 / 2f",
        "%0 = add(%x, 1f);\n  %1 = %x.0;\n  %2 = multiply(%0, %1);\n  divide(%2, 2f)",
    ),
    ("f(%x >= 1f, a=1)", "%0 = greater_equal(%x, 1f);\n  f(%0, a=1)"),
    ("abs", "abs"),
    ("1.50f", "1.5f"),
    ("f(a=1.50f)", "f(a=1.5f)"),
    ('f(a="\\\'\\101")', 'f(a="\'A")'),
    ("(%x, %x,)", "(%x, %x)"),
    ("%x.0.1", "%0 = %x.0;\n  %0.1"),
)


@pytest.mark.parametrize(("body", "printed"), FREELY)
def test_written_freely(body: str, printed: str) -> None:
    assert relay.astext(relay.fromtext(main(body))) == main(printed)


def test_names_of_variables() -> None:
    params = "%conv1.weight: float32, %layer1.0.bias: float32, %a/Conv2D: float32"
    text = main("(%conv1.weight, %layer1.0.bias, %a/Conv2D)", params)
    assert relay.astext(relay.fromtext(text)) == text
    projected = relay.fromtext(main("%a.b.1", "%a.b"))["main"].body
    assert isinstance(projected, relay.TupleGetItem)
    assert projected.index == 1


def test_sharing() -> None:
    body = relay.fromtext(main("%0 = f(%x); (%0, %0)"))["main"].body
    assert isinstance(body, relay.Tuple)
    assert body.fields[0] is body.fields[1]


def test_several_functions() -> None:
    text = (
        HEADER + "def @main(%x: float32) -> float32 {\n  %0 = @other(%x);\n  @other(%0)\n}\n\n"
        'def @other(%x1: float32, Compiler="cutlass", global_symbol="other") {\n  %1 = f(%x1);\n'
        "  g(%1)\n}\n"
    )
    mod = relay.fromtext(text)
    assert list(mod.functions) == ["main", "other"]
    assert dict(mod["other"].attrs) == {"Compiler": "cutlass", "global_symbol": "other"}
    assert relay.astext(mod) == text


def test_types_and_places() -> None:
    mod = relay.fromtext(main("f(%x) /* ty=Tensor[(?), int8] span=net.py:4:2 */"), "here.relay")
    call = mod["main"].body
    assert call.checked_type == relay.TensorType((relay.ANY,), "int8")
    assert call.span is not None
    assert str(call.span) == "here.relay:3:3"
    assert (call.span.end_line, call.span.end_column) == (3, 8)
    assert str(call.span.origin) == "net.py:4:2"
    param = mod["main"].params[0]
    assert param.type_annotation == relay.TensorType((2, 3))
    assert param.checked_type is None


DTYPES = ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "bfloat16",
          "float32", "float64")  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 1, 3)])
def test_constants(dtype: str, shape: tuple[int, ...]) -> None:
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    data = (np.arange(np.prod(shape), dtype="int64").reshape(shape) % 2).astype(kind)
    constant = relay.Constant(data, checked_type=relay.TensorType(shape, dtype))
    call = relay.Call(relay.Op("f"), (constant, constant))
    text = relay.astext(relay.IRModule({"main": relay.Function((), call)}))
    again = relay.fromtext(text)
    back = again["main"].body.args[0]
    assert back.data.dtype == kind
    assert back.data.shape == shape
    assert back.data.tobytes() == data.tobytes()
    assert not back.data.flags.writeable
    assert relay.astext(again) == text


def test_metadata_left_out() -> None:
    mod = relay.fromtext(fixture_text("smallnet_grad_gnf"))
    text = relay.astext(mod, show_meta_data=False)
    assert "#[metadata]" not in text
    assert "meta[relay.Constant][0]" in text
    with pytest.raises(relay.RelayTextError, match="none of that type"):
        relay.fromtext(text)


def test_objects_keep_their_places() -> None:
    arrays = [relay.Constant(np.full(3, i)) for i in range(3)]
    head = relay.Function((), relay.Tuple(tuple(arrays)))
    mod = relay.fromtext(relay.astext(relay.IRModule({"main": head})))
    zero, one, two = mod["main"].body.fields
    # The last first, and the middle one gone: the order of the table stays.
    changed = relay.Function((), relay.Tuple((two, relay.Constant(np.full(3, 9)), zero)))
    text = relay.astext(relay.IRModule({"main": changed}, metadata=mod.metadata))
    assert "(meta[relay.Constant][1], meta[relay.Constant][2], meta[relay.Constant][0])" in text
    values = [int(field.data[0]) for field in relay.fromtext(text)["main"].body.fields]
    assert values == [2, 9, 0]
    assert one.data[0] == 1


def test_no_text_for() -> None:
    free = relay.Function((), relay.Var("x"))
    with pytest.raises(relay.RelayTextError, match="%x is not bound"):
        relay.astext(relay.IRModule({"main": free}))
    call = relay.Call(relay.Op("f"), (), {"a": object()})
    with pytest.raises(relay.RelayTextError, match="attribute a is a object"):
        relay.astext(relay.IRModule({"main": relay.Function((), call)}))
    odd = relay.Constant(np.zeros(2, "complex64"))
    with pytest.raises(relay.RelayTextError, match="complex64"):
        relay.astext(relay.IRModule({"main": relay.Function((), odd)}))
    with pytest.raises(relay.RelayTextError, match="no name of a function"):
        relay.astext(relay.IRModule({"a b": relay.Function((), relay.Tuple(()))}))


def test_soon_enough() -> None:
    text = fixture_text("resnet8_cifar_grad")
    relay.fromtext(text)  # the tables of the grammar are built once
    mod = relay.fromtext(text)
    parsed = seconds(lambda: relay.fromtext(text))
    assert parsed < 0.4
    assert parsed + seconds(lambda: relay.astext(mod)) < 1.0


@pytest.mark.longer("programs long enough to tell linear time")
@pytest.mark.parametrize("make", [let_chain, call_chain])
def test_linear(make: object) -> None:
    assert callable(make)

    def cost(count: int) -> float:
        text = make(count)
        assert relay.astext(relay.fromtext(text)) == text
        return seconds(lambda: relay.astext(relay.fromtext(text)), 2)

    # Quadratic time would be 64 times as much; the slack is for a busy machine.
    assert cost(8000) < 32 * cost(1000)


@pytest.mark.longer("programs long enough to tell linear time")
def test_ten_megabytes() -> None:
    text = let_chain(48_000)
    assert len(text) > 10_000_000
    assert seconds(lambda: relay.fromtext(text), 1) < 60
    assert relay.astext(relay.fromtext(text)) == text


def test_widths_that_print_without_one() -> None:
    mod = relay.fromtext(f"{HEADER}def @main(%x: float32) {{ f(%x, a=3i32, b=0.5f32) }}")
    assert relay.structural_equal(mod, relay.fromtext(relay.astext(mod)))
    assert "a=3, b=0.5f" in relay.astext(mod)


def test_attributes_in_metadata() -> None:
    pool = {
        "pool_size": (3, 3), "strides": (2, np.int64(2)), "dilation": (), "padding": (0, relay.ANY),
        "layout": "NCHW", "out_layout": "", "ceil_mode": True,
    }  # fmt: skip
    attrs = relay.MetaAttrs("relay.attrs.MaxPool2DAttrs", pool)
    call = relay.Call(relay.Op("nn.max_pool2d_grad"), (), attrs)
    mod = relay.IRModule({"main": relay.Function((), call)})
    again = relay.fromtext(relay.astext(mod))
    assert dict(again["main"].body.attrs) == pool
    assert relay.structural_equal(mod, again)
    unknown = relay.MetaAttrs("relay.attrs.Conv2DAttrs", {"groups": 1})
    call = relay.Call(relay.Op("nn.conv2d"), (), unknown)
    with pytest.raises(relay.RelayTextError, match=r"relay\.attrs\.Conv2DAttrs"):
        relay.astext(relay.IRModule({"main": relay.Function((), call)}))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("free_var %x: float32; %x((%x,).0, %x)",
         "free_var %x: float32;\n%0 = (%x,);\n%1 = %0.0;\n%x(%1, %x)"),
        ("fn (%x) { free_var %y; f(%x, %y) }",
         "fn (%x) {\n  free_var %y;\n  f(%x, %y)\n}"),
        ("free_var %x; %0 = f(%x); let %x = %0; g(%x)",
         "free_var %x1;\nlet %x = f(%x1);\ng(%x)"),
        ("@f(@g)", "@f(@g)"),
    ],
)  # fmt: skip
def test_expressions_with_free_variables(text: str, printed: str) -> None:
    expr = relay.parse_expr(text)
    assert expr.astext() == HEADER + printed
    assert relay.structural_equal(relay.parse_expr(expr.astext()), expr, map_free_vars=True)


def test_a_chain_of_operators_may_be_long() -> None:
    sum_ = relay.parse_expr(" + ".join(["1f"] * 5_000))
    assert sum(isinstance(node, relay.Call) for node in ast.post_order(sum_)) == 4_999


def test_parse_takes_a_module_and_a_table() -> None:
    table = {"relay.Constant": [relay.const(np.ones((2, 3)), "float32")]}
    first = relay.fromtext(HEADER + "def @f(%x: Tensor[(2, 3), float32]) { negative(%x) }")
    text = (
        HEADER + "def @main(%x: Tensor[(2, 3), float32]) { add(@f(%x), meta[relay.Constant][0]) }"
    )
    mod = relay.parse(text, "here", first, table)
    assert list(mod.functions) == ["f", "main"]
    assert relay.structural_equal(relay.fromtext(mod.astext()), mod)
    with pytest.raises(relay.RelayTextError, match="@main is defined twice"):
        relay.parse(text, "here", mod, table)
    with pytest.raises(relay.RelayTextError, match="none of that type"):
        relay.parse(text, init_module=first)
    with pytest.raises(relay.RelayTextError, match="begins with"):
        relay.parse("def @f() { 1f }")
