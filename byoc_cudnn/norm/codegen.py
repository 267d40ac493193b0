"""The C++ of normalizations, as `codegen.direct` has it.

A kernel serves all calls of a direction, dtype, activation and kind of residual, whatever their
sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..codegen.direct import ELEMENTS, Family
from ..codegen.templates import constants, shared
from .call import GATED, OTHERS, WORDS, NormCall, check

_MULTIPROCESSORS = 256  # of the largest device that a workspace is planned for
_SHARED = constants("norm", "norm_call.h")

# Rows of a thread on the way at once: images are few rows, and there are more sums of each; but of
# moments alone as many as a batch's have.
_GATED_ROWS = {True: "#define RW_NORM_UNROLL 8", False: "#define RW_NORM_UNROLL 4"}
# Members of what a call gives and another takes; mask and index are one, of no rows and channels.
_RESULTS = {"mask": "new_mask", "index": "new_mask", "sums": "new_sums"}
_TAIL = re.compile(
    r"(_residual|_after|_of\d|_rows(?:_float16|_bfloat16)?)?(_bits)?(_summed)?(_grouped)?(_sliced|_placed|_within|_total)?"
    r"(_skip)?"
    r"(?:_pooled_(\d+)x(\d+)_(\d+)x(\d+))?"
)
_RESIDUALS = {None: "kNone", "_residual": "kBefore", "_after": "kAfter"}
_GATED_TAIL = re.compile(r"(_residual)?(_relu)?(_bits)?(_summed)?")


def workspace_bytes(channels: int, dtype: str, images: int = 1, by_row: bool = False) -> int:
    """Bytes of the workspace that a call may be given as its last operand, for any device.

    images : of a grouped call, whose statistics each has its own.
    by_row : of a call whose rows are its images; their number does not matter.

    It may be smaller; a call without one uses a block that its stream keeps.
    """
    size = 8 if dtype == "float64" else 4
    if by_row:
        blocks = _SHARED["kNormRowBlocks"] * _MULTIPROCESSORS
        return blocks * _SHARED["kNormRowSums"] * size * channels
    most = _SHARED["kNormChannels"]
    blocks = max(images * -(-channels // most), _SHARED["kNormBlocks"] * _MULTIPROCESSORS)
    return _SHARED["kNormSums"] * size * most * blocks


def _tail(call: NormCall) -> str:
    if call.gated:
        more = "_residual" * call.residual + "_relu" * bool(call.last)
        return more + "_bits" * call.bits + "_summed" * call.summed
    residual = "_residual" if (call.residual if call.forward else call.stored) else ""
    residual = "_after" if call.after else residual
    if call.others or call.by_row:
        residual = (
            f"_of{call.others + 1}"
            if call.others
            else "_rows" + f"_{call.rounded}" * bool(call.rounded)
        )
    more = residual + "_bits" * (call.bits and residual != "") + "_summed" * call.summed
    more += "_grouped" * (call.grouped and not call.by_row)
    more += "_sliced" * bool(call.slices) + "_placed" * bool(call.place)
    more += "_within" * bool(call.within) + "_total" * call.total + "_skip" * call.skip
    if call.pooled:
        r, s, down, across = call.pooled[:4]
        more += f"_pooled_{r}x{s}_{down}x{across}"
    return more


def _enumerator(activation: str) -> str:
    """Of `Activation` in the templates."""
    return "k" + "".join(word.capitalize() for word in (activation or "none").split("_"))


def _gated_body(
    direction: str, dtype: str, activation: str, tail: str
) -> tuple[Sequence[str], str] | None:
    """Of a kernel around a gate."""
    found = _GATED_TAIL.fullmatch(tail)
    if not found:
        return None
    flags = found.groups()
    told = {"excite": flags[:3], "gate_sums": flags[2:]}.get(direction, ())
    more = [str(bool(flag)).lower() for flag in told]
    words = ", ".join([ELEMENTS[dtype][1], f"Activation::{_enumerator(activation)}", *more])
    parts = ["device", "together", "forward", "gated"]
    moments = direction == "squeeze" and not activation
    texts = [_GATED_ROWS[moments], *(NORMS.template(f"norm_{part}.h") for part in parts)]
    return texts, f"{direction}<{words}>"


def _body(
    direction: str, dtype: str, activation: str, tail: str
) -> tuple[Sequence[str], str] | None:
    if direction in GATED:
        return _gated_body(direction, dtype, activation, tail)
    found = _TAIL.fullmatch(tail)
    if not found:
        return None
    residual, bits, summed, grouped, other, skip, *windows = found.groups()
    forward = direction == "forward"
    if other in ("_placed", "_sliced") and forward != (other == "_placed"):
        return None  # gradients are sliced, results placed
    if (skip and forward) or (residual == "_after" and not forward):
        return None
    kind = f"{ELEMENTS[dtype][1]}, Activation::{_enumerator(activation)}"
    function = direction
    last = f"Residual::{_RESIDUALS.get(residual)}, {str(bool(bits)).lower()}"
    if residual is not None and residual.startswith("_rows"):
        parts, other_dtype = ["device", "rows"], residual.removeprefix("_rows").removeprefix("_")
        if other_dtype:
            if dtype != "float32":
                return None
            kind += f", {ELEMENTS[other_dtype][1]}"
        return [NORMS.template(f"norm_{part}.h") for part in parts], f"{direction}_rows<{kind}>"
    added = residual is not None and residual.startswith("_of")
    if added and not 2 <= int(residual[3:]) <= OTHERS + 1:
        return None
    if added:
        function = f"{direction}_added"
        last = f"{residual[3:]}, {str(bool(summed)).lower()}"
    elif windows[0]:
        function, last = f"{direction}_pooled", ", ".join(windows)
    elif direction == "backward":
        mask = "kComputed" if activation else "kNone"
        if residual:
            mask = "kBits" if bits else "kStored"
        last = f"Mask::{mask}, {str(bool(summed)).lower()}"
    if not added and not windows[0]:
        flags = [grouped, other in ("_placed", "_sliced"), other == "_within"]
        flags.append(other == "_total" if forward else skip)
        last += "".join(f", {str(bool(flag)).lower()}" for flag in flags)
    parts = ["device", "together", "forward", "backward", "added"]
    if windows[0]:
        parts[-1] = "pooled"
    elif not added:
        parts = ["device", "together", direction]
    texts = [NORMS.template(f"norm_{part}.h") for part in parts]
    if windows[0]:
        texts.insert(0, shared("device_maxima.h"))
    return texts, f"{function}<{kind}, {last}>"


def _slot(name: str) -> str:
    """Of `Tensors`; a further normalization's has its number, but dy2 is a name."""
    if name[-1].isdigit() and name != "dy2":
        return f"{{&Tensors::{name[:-1]}, {int(name[-1]) - 1}}}"
    return f"&Tensors::{name}"


def _row(call: NormCall) -> tuple[str, str]:
    names = [
        *("mask" if name == "index" else name for name in call.operands),
        *(_RESULTS.get(name, name) for name in call.results),
    ]
    operands = ", ".join(map(_slot, names))
    pooled = ", ".join(map(str, call.pooled))
    slices = ", ".join(f"{{{first}, {channels}}}" for first, channels in call.slices)
    place, within = (", ".join(map(str, one)) for one in (call.place, call.within))
    words = [
        call.direction, call.dtype, *([call.activation] if call.activation else []),
        *(["residual"] if call.residual else []), *(["running"] if call.running else []),
        *(["bits"] if call.bits else []), *(["summed"] if call.summed else []),
        *(["after"] if call.after else []), *(["total"] if call.total else []),
        *(["skip"] if call.skip else []), *(["and", str(call.others)] if call.others else []),
        *(["pooled"] if call.pooled else []), *(["rounded", call.rounded] if call.rounded else []),
        *(["then", call.last] if call.last else []),
        *(f"{first}+of{channels}" for first, channels in call.slices),
        *(["at", *map(str, call.place)] if call.place else []),
        *(["within", *map(str, call.within)] if call.within else []),
    ]  # fmt: skip
    kind = "layer_norm" if call.by_row else "group_norm" if call.grouped else "batch_norm"
    numbers = f"{call.epsilon!r}, {call.momentum!r}, {call.alpha!r}"
    flags = (call.unbiased, call.grouped, call.by_row, call.gated)
    rows = ELEMENTS[call.rounded or call.dtype][0]
    switches = ", ".join(str(one).lower() for one in flags)
    return f"{kind} {' '.join(words)}", (
        f"{ELEMENTS[call.dtype][0]}, {rows}, {numbers}, {switches},\n"
        f"     {{{pooled}}}, {{{operands}}}, {{{slices}}}, {{{place}}}, {{{within}}}"
    )


def _overwrites(call: NormCall) -> list[tuple[int, int]]:
    places = {name: place for place, name in enumerate((*call.operands, *call.results))}
    return [(places[result], places[operand]) for result, operand in call.overwrites]


NORMS = Family(
    "norm", "Normalization in training", "Norm", check, WORDS, _row, _body, _tail, _overwrites,
)  # fmt: skip
