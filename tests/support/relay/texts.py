"""Relay texts that the tests of parser and printer share."""

from __future__ import annotations

from tests.support.relay.fixtures import HERE

HEADER = '#[version = "0.0.5"]\n'


def fixture_texts() -> list[str]:
    """The names of all programs that TVM 0.19 printed."""
    return sorted(path.stem for path in HERE.glob("*.relay"))


def fixture_text(name: str) -> str:
    return (HERE / f"{name}.relay").read_text(encoding="utf-8")


def main(body: str, params: str = "%x: Tensor[(2, 3), float32]") -> str:
    """A module of one function, its body on the text's third line."""
    return f"{HEADER}def @main({params}) {{\n  {body}\n}}\n"


def with_metadata(body: str, nodes: str, arrays: str = "[]", root: str = "1") -> str:
    """`main`, with metadata of these JSON nodes behind node 0, which is null."""
    metadata = (
        f'{{"root": {root}, "nodes": [{{"type_key": ""}}, {nodes}], "b64ndarrays": {arrays}}}'
    )
    return f"{main(body)}\n#[metadata]\n{metadata}"


def let_chain(count: int) -> str:
    """`count` lets, about 200 characters each."""
    type_ = "Tensor[(2, 16, 28, 28), float32]"
    lines = [
        f"  let %x_{i + 1}: {type_} /* ty={type_} */ = nn.conv2d(%x_{i}, %w, padding=[1, 1, 1, 1], "
        f"channels=16, kernel_size=[3, 3]) /* ty={type_} */;"
        for i in range(count)
    ]
    head = f"def @main(%x_0: {type_}, %w: Tensor[(16, 16, 3, 3), float32]) {{"
    return "\n".join([HEADER + head, *lines, f"  %x_{count}", "}", ""])


def call_chain(count: int) -> str:
    """`count` calls, each of the one before, as graph variables."""
    lines = [f"  %{i} = nn.relu({f'%{i - 1}' if i else '%x'});" for i in range(count)]
    return "\n".join([HEADER + "def @main(%x) {", *lines, f"  nn.relu(%{count - 1})", "}", ""])


# Bodies that print as they are written.
BODIES = (
    "%x",
    "()",
    "(%x,)",
    "(%x, 1f, 2i64, 3i16, 4, 0.5f16, 0.1f64, True, False)",
    "(65504f16, -65504f16, 3.4028234663852886e+38f, 1.7976931348623157e+308f64)",
    "(inff, -inff, inff64, nanf, -0f, 1e+20f, 1.17549435e-38f, 0.0999756f16)",
    "%0 = f(%x);\n  %0.0",
    "%0 = (%x, %x);\n  %1 = %0.1;\n  f(%1)",
    "%0 = f(%x);\n  (%0, %0)",
    "%0 = g(%x);\n  %1 = g(%x);\n  f(%0, %1)",
    # All that one operand needs comes before the next is numbered.
    "%0 = g(%x);\n  %1 = h(%x);\n  %2 = k(%0);\n  %3 = k(%1);\n  f(%2, %3)",
    "let %y = f(%x);\n  let %z = %y;\n  (%y, %z)",
    "%0 = f(%x);\n  let %y = %0;\n  g(%0, %y)",
    "%0 = (\n    let %y = f(%x);\n    %y\n  );\n  g(%0)",
    # What the first `let` in brackets needs stands before them.
    "%0 = f(%x);\n  %2 = (\n    let %y = f(%0);\n    %1 = f(%y);\n    g(%1)\n  );\n  (%2, %0)",
    "let %y = (\n    let %z = %x;\n    %z\n  );\n  %y",
    "if (True) {\n    %x\n  } else {\n    f(%x)\n  }",
    "%0 = less(%x);\n  if (%0) {\n    %1 = f(%x);\n    (%1, %1)\n  } else {\n    (%x, %x)\n  }",
    "%0 = if (True) {\n    %x\n  } else {\n    %x\n  };\n  f(%0)",
    "%0 = fn (%y: float32, Primitive=1) -> float32 {\n    f(%y)\n  };\n  %0(%x)",
    "let %g = fn (%y) {\n    f(%y, 1f)\n  };\n  %g(%x)",
    "@main(%x)",
    "%0 = @main(%x);\n  @main(%0)",
    "f(%x, a=1, b=-2, c=0.5f, d=1e-05f, e=3i64, f=0.25f64, g=True, h=False, i=None, j=?)",
    "f(a=[1, 2], b=[], c=[[0, 0], [1, -1]], d=[\"NCHW\", \"\"], e=[?, 4])",
    'f(%x, a="a \\"quote\\", \\\\, \\n, \\t, \\r, \\x07 and é\\xE9")'.replace("é", ""),
    "f(%x) /* ty=float32 */",
    "f(%x) /* ty=(float32,) */",
    "f(%x) /* ty=() */",
    "f(%x) /* ty=(Tensor[(?, 2), int8], (bool, fn (float32) -> fn () -> float64)) */",
    "f(%x) /* ty=Tensor[(1), bfloat16] span=from_string:3:7 */",
    "f(%x) /* span=model.py:12:1 */",
    "f(%x) /* span=net/conv:0:12:1 */",
    "(%x, 1f /* ty=float32 span=a:1:2 */) /* ty=(float32, float32) */",
    "let %y: Tensor[(?), int64] /* ty=Tensor[(3), int64] span=a:1:2 */ = f(%x);\n  %y",
    "qnn.op.name_1(%x)",
)  # fmt: skip
