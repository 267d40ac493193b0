"""The programs that Relay 0.19 converted, what they were made from, and how ours compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.text import fromtext
from tests.support.relay.fixtures import fixture_names
from tests.support.relay.texts import fixture_text

CONV = {"nn.conv2d": ["NHWC", "OHWI"]}
ALL = {
    **CONV,
    "nn.conv2d_transpose": ["NHWC", "IHWO"],
    "nn.conv2d_backward_weight": ["NHWC", "OHWI"],
}


@dataclass(frozen=True)
class Conversion:
    """One of Relay's: `result` is `source` with these layouts; `run` computes the same."""

    result: str
    source: str
    desired: dict[str, Any]
    run: str

    def converted(self) -> relay.IRModule:
        """Ours."""
        return T.ConvertLayout(self.desired)(fromtext(fixture_text(self.source)))

    def theirs(self) -> relay.IRModule:
        """Relay's."""
        return T.InferType()(fromtext(fixture_text(self.result)))


def conversions() -> list[Conversion]:
    """All, in the order of the documented table."""
    out = []
    for name in fixture_names("wgrad_*_nhwc"):
        source = name.removesuffix("_nhwc")
        composite = source.endswith("_legalized")
        run = source.removesuffix("_legalized")
        out.append(Conversion(name, source, CONV if composite else ALL, run))
    nets = ("smallnet_grad", "resnet8_cifar_grad")
    return out + [Conversion(f"{net}_nhwc", f"{net}_gnf", ALL, net) for net in nets]


def count(mod: relay.IRModule, name: str) -> int:
    """The calls of an operator in @main."""
    return sum(
        isinstance(node, relay.Call) and node.op == relay.Op(name)
        for node in relay.ast.post_order(mod["main"])
    )


def table() -> str:
    """The documented comparison."""
    head = "| program | Relay's | here | the same program |\n| --- | --- | --- | --- |\n"
    rows = []
    for c in conversions():
        ours, theirs = c.converted(), c.theirs()
        same = "yes" if relay.structural_equal(ours, theirs) else "no"
        changes = [count(mod, "layout_transform") for mod in (theirs, ours)]
        rows.append(f"| `{c.result}` | {changes[0]} | {changes[1]} | {same} |\n")
    return head + "".join(rows)
