"""`partition`: the convolutions of a module to libraries, each call to the first row that takes it.

One walk over each function.  For every call of the convolution family the rows of the chosen
backends are asked, big to small; what they accept becomes a call of a composite function.  The time
is linear in the program's length: patterns are matched only where a convolution stands.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import tvm

from relay_wgrad.argument_types import checked_bool
from relay_wgrad.transform.raising.transform import find_conv_backward

from .report import PRODUCT, Report
from .split.partition import bound_backends, check_registered, partition_relax
from .tuning.record import Record
from .tuning.selection import Selection

if TYPE_CHECKING:
    from types import ModuleType

    from relay_wgrad import relay


@overload
def partition(
    mod: relay.IRModule,
    backends: Sequence[str] = ("cudnn",),
    strict: bool = False,
    *,
    fuse: bool = True,
    select: str = "first",
    record: Record | str | Path | None = None,
    products: bool = False,
    **options: Any,
) -> tuple[relay.IRModule, Report]: ...


@overload
def partition(
    mod: tvm.IRModule,
    backends: Sequence[str] = ("cudnn",),
    strict: bool = False,
    *,
    fuse: bool = True,
    select: str = "first",
    record: Record | str | Path | None = None,
    products: bool = False,
    **options: Any,
) -> tuple[tvm.IRModule, Report]: ...


def partition(
    mod: Any,
    backends: Sequence[str] = ("cudnn",),
    strict: bool = False,
    *,
    fuse: bool = True,
    select: str = "first",
    record: Record | str | Path | None = None,
    products: bool = False,
    **options: Any,
) -> tuple[Any, Report]:
    """Sends the convolutions of all Relax functions of a module to libraries.

    Gradients in composite form are sent as the convolutions that they are written with, and a
    warning says how many there are: `RaiseConvBackward` before makes operators of them.

    A Relay module becomes a Relay module whose functions carry `Compiler=<backend>`; it needs no
    `relay_wgrad.register()`, and `relay.build` for CUDA takes it.

    Parameters
    ----------
    mod : any module; ops of the family in dataflow blocks, in other blocks and in branches go, and
        functions keep their parameters, results and attributes.
    backends : names, the preferred first.
    strict : whether it is an error that a convolution stays.
    fuse : whether a convolution may take along what follows it: bias, residual, ReLU, ReLU's mask.
    select : "first": the first backend that takes a convolution gets it.  "measured": the one that
        was fastest when it was measured (`tune`), TVM's own kernel included; the first where
        nothing was.  A backend that fuses more is asked first.
    record : the measurements, or their file; by default the user's own.  Those of the GPU that is
        here count, or of the only one in the record where none is.
    products : whether matrix products go too, as convolutions of one pixel
        (`relay_wgrad.transform.raise_product`); for Relax modules.  The report says of each where
        it goes, or why it stays, and `strict` says nothing of them.
    options : for each backend a mapping of its options, `cudnn={"allow_tf32": False}`.

    Returns
    -------
    (tvm.IRModule, Report) : a new module, and what became of each convolution.  Partitioning it
        again changes nothing; `unpartition` is the way back.

    Raises
    ------
    TypeError : for arguments and options of another type.
    ValueError : for unknown backends and options, naming the known ones; with `strict`, listing the
        convolutions that stay and the reasons (not those that are faster there); for
        `select="measured"` and `products` of a Relay module.
    RuntimeError : before `relay_wgrad.register()`.
    """
    out, report = _partition(mod, backends, strict, fuse, select, record, products, options)
    _warn(report, stacklevel=3)
    return out, report


def _relay_of(mod: Any) -> ModuleType | None:
    """`relay.partition` for a Relay module, else None.

    Relay's surface and its parser are loaded for a module that is not TVM's own, and for no other.
    """
    if isinstance(mod, tvm.IRModule):
        return None
    from relay_wgrad import relay

    from .relay import partition as for_relay

    return for_relay if isinstance(mod, relay.IRModule) else None


def _warn(report: Report, stacklevel: int) -> None:
    if report.hint:
        warnings.warn(
            f"partition: {report.total} convolutions; {report.hint}", UserWarning, stacklevel
        )


def _partition(
    mod: Any,
    backends: Sequence[str],
    strict: bool,
    fuse: bool,
    select: str,
    record: Record | str | Path | None,
    products: bool,
    options: Mapping[str, Any],
) -> tuple[Any, Report]:
    for name, value in (("strict", strict), ("fuse", fuse), ("products", products)):
        checked_bool(f"partition: {name}", value)
    for_relay = _relay_of(mod)
    if for_relay is None:
        check_registered()
        if not isinstance(mod, tvm.IRModule):
            raise TypeError(f"partition: mod must be an IRModule, got {type(mod).__name__}")
    chosen, made_options = bound_backends(backends, options, fuse)
    if select not in ("first", "measured"):
        raise ValueError(f"partition: select must be 'first' or 'measured', got {select!r}")
    if record is not None and select != "measured":
        raise ValueError("partition: a record is for select='measured'")
    if for_relay is not None and select == "measured":
        raise ValueError("partition: select='measured' is for Relax modules; lower the Relay one")
    if for_relay is not None and products:
        raise ValueError("partition: products=True is for Relax modules; lower the Relay one")
    measured = Selection(record) if select == "measured" else None
    if for_relay is not None:
        out, report = for_relay.partition_relay(mod, chosen, made_options)
    else:
        out, entries = partition_relax(mod, chosen, made_options, measured, products)
        report = Report(entries, find_conv_backward(mod).raised)
    refused = [entry for entry in report.refused if entry.op != PRODUCT]
    if strict and refused:
        lines = [f"{e.function}: {e.node} = {e.op}: {e.reason}" for e in refused]
        count = sum(entry.op != PRODUCT for entry in report.entries)
        raise ValueError(
            f"partition: {len(lines)} of {count} convolutions stay: " + "; ".join(lines)
        )
    return out, report


def _partition_for(
    backend: str,
    mod: Any,
    params: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    strict: bool,
    fuse: bool,
    products: bool,
) -> tuple[Any, Report]:
    given = {backend: options}
    if params is not None:
        for_relay = _relay_of(mod)
        if for_relay is None:
            raise TypeError(
                f"partition_for_{backend}: params are for Relay modules;"
                " relax.transform.BindParams binds those of a Relax one"
            )
        mod = for_relay.with_params(mod, params)
    out, report = _partition(mod, (backend,), strict, fuse, "first", None, products, given)
    _warn(report, stacklevel=4)
    return out, report


def partition_for_cudnn(
    mod: Any,
    params: Mapping[str, Any] | None = None,
    *,
    allow_tf32: bool = True,
    benchmark: bool = False,
    deterministic: bool = False,
    workspace_limit: int | None = None,
    strict: bool = False,
    fuse: bool = True,
    products: bool = False,
) -> tuple[Any, Report]:
    """`partition` to cuDNN alone: the new module and the report, of a Relax and of a Relay module.

    The options are `backends.cudnn.Options`.  `params` become constants of a Relay module's @main.
    """
    given = {
        "allow_tf32": allow_tf32,
        "benchmark": benchmark,
        "deterministic": deterministic,
        "workspace_limit": workspace_limit,
    }
    return _partition_for("cudnn", mod, params, given, strict, fuse, products)


def partition_for_cutlass(
    mod: Any,
    params: Mapping[str, Any] | None = None,
    *,
    allow_tf32: bool = True,
    deterministic: bool = False,
    split_k: int | None = None,
    arch: int = 80,
    wgmma: bool = False,
    strict: bool = False,
    fuse: bool = True,
    products: bool = False,
) -> tuple[Any, Report]:
    """`partition` to CUTLASS alone; the options are `backends.cutlass.Options`.

    `params` and the result are as of `partition_for_cudnn`.
    """
    given = {
        "allow_tf32": allow_tf32,
        "deterministic": deterministic,
        "split_k": split_k,
        "arch": arch,
        "wgmma": wgmma,
    }
    return _partition_for("cutlass", mod, params, given, strict, fuse, products)
