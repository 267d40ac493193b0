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
