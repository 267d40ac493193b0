"""Objects of the metadata that are numbers, strings, lists and maps, as TVM 0.19 writes them.

The nodes are what `SaveJSON` gives: numbered as a walk from the root first meets them, boxes by
their own text (`repr_str`, or `repr_b64` with the length before where it can't be printed), a node
that several refer to once.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay.boxed_values import BoxBool, BoxFloat, BoxInt
from relay_wgrad.relay.errors import RelayTextError
from tests.support.relay.texts import HEADER

X = "%x: Tensor[(6, 2), float32] /* ty=Tensor[(6, 2), float32] */"
PART = "Tensor[(3, 2), float32]"


def metadata(*nodes: dict[str, Any]) -> str:
    """The section, laid out as dmlc's JSON writer does."""
    lines = []
    for node in ({"type_key": ""}, *nodes):
        fields = []
        for name, value in node.items():
            text = json.dumps(value)
            if isinstance(value, dict):
                held = ", \n".join(f'        "{k}": "{v}"' for k, v in sorted(value.items()))
                text = f"{{\n{held}\n      }}"
            elif name == "keys":
                held = ", \n".join(f"        {json.dumps(key)}" for key in value)
                text = f"[\n{held}\n      ]"
            fields.append(f'      "{name}": {text}')
        lines.append("    {\n" + ", \n".join(fields) + "\n    }")
    held = ", \n".join(lines)
    return (
        '\n#[metadata]\n{\n  "root": 1, \n  "nodes": [\n' + held + "\n  ], \n"
        '  "b64ndarrays": [], \n  "attrs": {"tvm_version": "0.19.0"}\n}'
    )


def box(kind: str, text: str) -> dict[str, Any]:
    return {"type_key": f"runtime.Box{kind}", "repr_str": text}


def imm(value: int) -> dict[str, Any]:
    return {"type_key": "IntImm", "attrs": {"dtype": "int32", "span": "0", "value": str(value)}}


def array(*data: int) -> dict[str, Any]:
    return {"type_key": "Array", "data": list(data)}


def table(**data: int) -> dict[str, Any]:
    keys = [key.replace("__", ".") for key in data]
    return {"type_key": "Map", "keys": keys, "data": list(data.values())}


SECTIONS = (
    HEADER + f"def @main({X}) -> ({PART}, {PART}) {{\n"
    "  split(%x, indices_or_sections=meta[runtime.BoxInt][0])"
    f" /* ty=({PART}, {PART}) */\n}}\n"
    + metadata(table(runtime__BoxInt=2), array(3), box("Int", "2"))
)
# One box that two calls refer to, and lists of them.
INDICES = (
    HEADER + f"def @main({X}) {{\n"
    "  %0 = split(%x, indices_or_sections=[meta[runtime.BoxInt][0], meta[runtime.BoxInt][1]]);\n"
    "  %1 = split(%x, indices_or_sections=[meta[runtime.BoxInt][2], meta[runtime.BoxInt][1]]);\n"
    "  %2 = %0.0;\n  %3 = %1.2;\n  (%2, %3)\n}\n"
    + metadata(
        table(runtime__BoxInt=2), array(3, 4, 5), box("Int", "2"), box("Int", "5"), box("Int", "2")
    )
)
# A function's attributes: maps in maps, and keys that are no strings.
NESTED = (
    HEADER + "def @main(%x: float32, relay_attrs=meta[Map][0], low=meta[runtime.BoxFloat][0], "
    "on=meta[runtime.BoxBool][0], off=meta[runtime.BoxBool][1], empty=meta[Map][1], "
    'name="n", list=[1, meta[Map][2], meta[runtime.BoxFloat][1]]) {\n  %x\n}\n'
    + metadata(
        table(Map=2, runtime__BoxFloat=16, runtime__BoxBool=19),
        array(3, 12, 13),
        table(deep=4, list=7, same=7, text=11, none=0),
        table(a=5, b=6),
        box("Int", "-9223372036854775808"),
        {"type_key": "runtime.String"},
        array(8, 9, 10),
        imm(7),
        box("Float", "1e-05"),
        {"type_key": "Array"},
        {"type_key": "runtime.String", "repr_b64": "AwAAAAAAAADDqQo="},
        {"type_key": "Map"},
        {"type_key": "Map", "data": [14, 15, 5, 5]},
        box("Int", "3"),
        {"type_key": "runtime.String", "repr_str": "three"},
        array(17, 18),
        box("Float", "0.5"),
        box("Float", "inf"),
        array(20, 21),
        box("Bool", "true"),
        box("Bool", "false"),
    )
)
# Windows that one object says, as C++ code that copies attributes leaves them.
SHARED = (
    HEADER + "def @main(%g: Tensor[(1, 1, 2, 2), float32], %x: Tensor[(1, 1, 3, 3), float32]) {\n"
    "  nn.avg_pool2d_grad(%g, %x, meta[relay.attrs.AvgPool2DAttrs][0])\n}\n"
    + metadata(
        {
            "type_key": "Map",
            "keys": ["relay.attrs.AvgPool2DAttrs"],
            "data": [2],
        },
        array(3),
        {
            "type_key": "relay.attrs.AvgPool2DAttrs",
            "attrs": {
                "ceil_mode": "1", "count_include_pad": "0", "dilation": "6", "layout": "8",
                "out_layout": "9", "padding": "7", "pool_size": "4", "strides": "4",
            },
        },
        array(5, 5),
        imm(2),
        {"type_key": "Array"},
        array(10, 10, 10, 10),
        {"type_key": "runtime.String", "repr_str": "NCHW"},
        {"type_key": "runtime.String"},
        imm(0),
    )
)  # fmt: skip


@pytest.mark.parametrize("text", [SECTIONS, INDICES, NESTED], ids=["int", "ints", "nested"])
def test_byte_for_byte(text: str) -> None:
    mod = relay.fromtext(text)
    assert relay.astext(mod) == text
    assert relay.structural_equal(relay.fromtext(relay.astext(mod)), mod)


def test_a_node_that_several_refer_to_is_one() -> None:
    """The walk numbers a shared list where it first stands."""
    text = relay.astext(relay.fromtext(SHARED))
    nodes = json.loads(text.partition("#[metadata]")[2])["nodes"]
    attrs = nodes[3]["attrs"]
    assert attrs["pool_size"] == attrs["strides"]
    window = nodes[int(attrs["pool_size"])]["data"]
    assert window[0] == window[1]
    assert len(set(nodes[int(attrs["padding"])]["data"])) == 1
    assert len(nodes) == 11
    assert relay.astext(relay.fromtext(text)) == text


def test_values_are_what_is_in_the_box() -> None:
    attrs = relay.fromtext(NESTED)["main"].attrs
    assert (attrs["on"], attrs["off"], attrs["low"]) == (True, False, 0.5)
    assert isinstance(attrs["on"], BoxBool)
    assert isinstance(attrs["low"], BoxFloat)
    nested = attrs["relay_attrs"]
    assert dict(nested["deep"]) == {"a": -(2**63), "b": ""}
    assert nested["list"] is nested["same"]
    assert nested["list"] == (7, 1e-5, ())
    assert nested["text"] == "é\n"
    assert dict(attrs["list"][1]) == {3: "three", nested["deep"]["a"]: nested["deep"]["a"]}
    made = relay.split(relay.var("x", shape=(6, 2)), 2)
    call = relay.fromtext(SECTIONS)["main"].body
    assert isinstance(call.attrs["indices_or_sections"], BoxInt)
    assert relay.structural_equal(made.astuple(), call, map_free_vars=True)


def test_programs_with_boxes_are_typed_converted_and_run(registered: None) -> None:
    x = np.arange(12, dtype="float32").reshape(6, 2)
    mod = relay.transform.InferType()(relay.fromtext(INDICES))
    lib = relay.build(relay.transform.EliminateCommonSubexpr()(mod), "llvm")
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.run(x=x)
    np.testing.assert_array_equal(module.get_output(0).numpy(), x[:2])
    np.testing.assert_array_equal(module.get_output(1).numpy(), x[5:])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (box("Int", "2"), box("Int", "2.5"), "no integer"),
        (box("Int", "2"), box("Int", str(2**63)), "out of int64's range"),
        (box("Int", "2"), box("Bool", "true"), "holds a 'runtime.BoxBool'"),
        (box("Int", "2"), {"type_key": "runtime.BoxInt"}, "no integer"),
        (array(3), array(1), "holds a 'Map'"),
    ],
)
def test_damaged_boxes(old: dict[str, Any], new: dict[str, Any], said: str) -> None:
    head, _, _ = SECTIONS.partition("\n#[metadata]")
    nodes = [table(runtime__BoxInt=2), array(3), box("Int", "2")]
    text = head + metadata(*(new if node == old else node for node in nodes))
    with pytest.raises(RelayTextError, match=said):
        relay.fromtext(text)


def test_maps_are_checked() -> None:
    for broken, said in (
        ({"type_key": "Map", "keys": ["a"], "data": []}, "don't pair"),
        ({"type_key": "Map", "keys": ["a", "a"], "data": [0, 0]}, "don't pair"),
        ({"type_key": "Map", "keys": [3], "data": [0]}, "keys are strings"),
        ({"type_key": "Map", "data": [0]}, "strings or numbers"),
        ({"type_key": "Map", "keys": ["a"], "data": [3]}, "in a circle"),
        ({"type_key": "runtime.String", "repr_b64": "AAAA"}, "holds a"),
    ):
        nodes = (table(Map=2), array(3), broken)
        with pytest.raises(RelayTextError, match=said):
            relay.fromtext(HEADER + "def @main(%x, a=meta[Map][0]) {\n  %x\n}\n" + metadata(*nodes))
    with pytest.raises(RelayTextError, match="is an attribute's value, and no expression"):
        relay.fromtext(SECTIONS.replace("split(%x, indices_or_sections=", "nn.relu("))
