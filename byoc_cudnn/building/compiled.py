"""From a partitioned module to something that runs: in this process, or exported to a file."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target

from relay_wgrad.argument_types import checked_if_given
from relay_wgrad.pipeline.cuda import cuda_pipeline

from ..attention import ATTENTION
from ..attention.lower import lower_attention
from ..backends.base import Inputs, no_inputs
from ..batched_products import BATCHED_PRODUCTS
from ..batched_products.lower import lower_batched_products
from ..cast_transpose import CAST_TRANSPOSES
from ..cast_transpose.lower import lower_cast_transposes
from ..codegen import direct as own
from ..codegen.entry import release_of
from ..codegen.external import arch_of, register
from ..codegen.lowering import DirectEntry
from ..joins import JOINS
from ..joins.lower import lower_joins
from ..norm import NORMS
from ..norm.lower import lower_norms
from ..point_weights import POINT_WEIGHTS
from ..point_weights.lower import lower_point_weights, without_point_weights
from ..pool import POOLS
from ..pool.lower import lower_pools
from ..softmax import SOFTMAX
from ..softmax.lower import lower_softmax
from ..standardized import STANDARDIZED
from ..standardized.lower import lower_standardized
from ..table import BACKENDS
from ..updates import UPDATES
from ..updates.lower import lower_updates
from .ieee_cuda import exact_kernels
from .kernels import kept_kernels
from .link import Linker, shared_command
from .toolchain import Toolchain, find, preload

# The host's part checks arguments and launches kernels.  To optimize it LLVM takes three times as
# long, DenseNet-121's 22 seconds, and a call gains 0.01 us, one with 40 tensors 0.2.
_HOST = {"kind": "llvm", "opt-level": 0}
_OLDEST = 75  # the first GPUs whose half-precision tensor cores all libraries use

# Of these a forward call and its backward call go together.
_PAIRS = (lower_standardized, lower_norms, lower_pools)
# Casts take the weights' gradients, and what fills up filters, which would be joins; joins take the
# sums that are left.
_SINGLE = (lower_point_weights, lower_cast_transposes, lower_joins, lower_updates)
FAMILIES = (
    ATTENTION, BATCHED_PRODUCTS, CAST_TRANSPOSES, JOINS, NORMS, POINT_WEIGHTS, POOLS, SOFTMAX,
    STANDARDIZED, UPDATES,
)  # fmt: skip


class Library:
    """A compiled module whose offloaded part is still C++ source.

    Making one needs neither a GPU nor a vendor's library nor a compiler; those are needed by what
    is done with it: `virtual_machine` and `export_library`; that is when nvcc runs, if at all.

    direct : what became of each call of an operator that there are kernels of our own for beside
        the convolutions': training batch normalization, max pooling, attention, softmax, joins and
        cuts along channels, weight gradients of one pixel, casts and updates of many tensors; and
        of each matrix product, which cuBLAS has kernels for.
    """

    def __init__(self, executable: Any, direct: tuple[DirectEntry, ...] = ()) -> None:
        self.executable = executable
        self.direct = direct
        self._runnable: Any = None

    @property
    def sources(self) -> list[str]:
        """The generated C++ sources; none if nothing was offloaded."""
        return [text for _, text in _sources(self.executable.mod)]

    def virtual_machine(
        self, device: Any = None, *, toolchain: Toolchain | None = None
    ) -> relax.VirtualMachine:
        """A virtual machine on `device` (the first CUDA device), after building the C++ source.

        Raises
        ------
        ToolchainError : saying what a build needs that is not there, and how to get it.
        """
        self.load(toolchain=toolchain)
        return relax.VirtualMachine(self._runnable, tvm.cuda(0) if device is None else device)

    def load(self, *, toolchain: Toolchain | None = None) -> None:
        """Builds the C++ source and loads it, for `virtual_machine`; needs no GPU.

        Raises ToolchainError as `virtual_machine` does.
        """
        if self._runnable is None:
            self._runnable = self.executable.jit(**self._arguments(toolchain))
            _loaded.add(self)

    def export_library(self, path: str | Path, *, toolchain: Toolchain | None = None) -> None:
        """Writes a shared library that runs where TVM's runtime, CUDA and cuDNN are.

        This package is not needed there: `tvm.runtime.load_module(path)` is enough.

        Raises ToolchainError as `virtual_machine` does.
        """
        self.executable.export_library(str(path), **self._arguments(toolchain))

    def plans(self) -> list[str]:
        """What was chosen for each problem that has run in this process, one line each.

        Problem and machine, engine and settings, bytes of workspace, milliseconds if it was timed;
        separated by tabs.  Nothing before `virtual_machine` has been used.
        """
        if self._runnable is None:
            return []
        texts = [str(text) for text in self._results_of(list(_owners()))]
        # One library can be there as two modules.
        return list(dict.fromkeys(line for text in texts for line in text.splitlines()))

    def release(self) -> int:
        """Gives back the device's memory that is kept between calls; of how many sources."""
        return len(self._results_of([release_of(name) for name in _owners()]))

    def _results_of(self, names: Sequence[str]) -> list[Any]:
        """What those functions give that the loaded modules have."""
        modules = [] if self._runnable is None else _all(self._runnable)
        return [m[name]() for m in modules for name in names if m.implements_function(name)]

    def _arguments(self, toolchain: Toolchain | None) -> dict[str, Any]:
        sources = _sources(self.executable.mod)
        if not sources:
            return {}
        found = find() if toolchain is None else toolchain
        preload(found)
        kernels = [partial(inputs, text, found, None) for inputs, text in sources]
        linker = Linker(found, kernels)
        return {"fcompile": linker, "fpack_imports": linker.pack}


_loaded: weakref.WeakSet[Library] = weakref.WeakSet()


def release_workspaces() -> None:
    """Gives back the workspaces that loaded libraries keep; the next call takes its own.

    Worth it once steps are repeated as a CUDA graph, which has memory of its own.
    """
    for library in list(_loaded):
        library.release()


def build(
    mod: tvm.IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    pipeline: Any = None,
    direct: bool | None = None,
    cut: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
) -> Library:
    """Compiles a partitioned module.

    Parameters
    ----------
    mod : what `partition` returned.  What it left is compiled by TVM's own pipeline.
    target : a CUDA target; by default that of the first device, or the oldest one that runs
        half-precision tensor cores on every supported GPU (sm_75) where there is none.
    pipeline : the Relax pipeline for what was left, as `tvm.compile` takes it; by default
        `relay_wgrad.pipeline.cuda`.
    cut : makes other functions of the module's, once it is known what goes from a normalization's
        or a pooling's forward call to its backward call, which may be in different functions then.
    direct : whether training batch normalization (`relax.nn.batch_norm_train` and its backward) and
        max pooling go to kernels of our own, casts and transpositions of weights and of their
        gradients to one for all, and so updates of parameters and weight gradients of one pixel,
        which are taken from a library for it where they are many, and joins, cuts and sums along
        the last axis to `joins`; they need nvcc.  And whether matrix products go to cuBLAS, which
        needs its library.  None: what is here of the two.  Without, and where there is none for a
        call, they are compiled as other operators.

    Raises
    ------
    TypeError : for `direct` that is neither True, False nor None.
    ValueError : for a target of another kind, and for regions that no code can be generated for.
    """
    direct = checked_if_given("build", "direct", direct)
    chosen = _target(target)
    for backend in BACKENDS.values():
        register(backend)
    found = find()
    ours = not own.missing(found) if direct is None else direct
    by_cublas = found.cublas is not None if direct is None else direct
    mod = without_point_weights(mod) if ours else mod
    with chosen:  # for the code generators
        mod = relax.transform.RunCodegen()(mod)
    entries: list[DirectEntry] = []
    # Products before joins, which would take what is between a tensor and its matrices; attention
    # before the softmax and the products that it has.
    pairs = (lower_attention, partial(lower_softmax, fill=by_cublas), *_PAIRS)
    single = ((lower_batched_products,) if by_cublas else ()) + (_SINGLE if ours else ())
    for families, then in ((pairs if ours else (), cut), (single, None)):
        for lower in families:
            mod, made = lower(mod, arch_of(chosen) or _OLDEST)
            entries += made
        mod = mod if then is None else then(mod)
    chosen_pipeline = cuda_pipeline() if pipeline is None else pipeline
    with exact_kernels(), kept_kernels():
        return Library(
            tvm.compile(mod, target=chosen, relax_pipeline=chosen_pipeline), tuple(entries)
        )


def _target(target: Target | str | Mapping[str, Any] | None) -> Target:
    if target is None:
        preload()
        device = tvm.cuda(0)
        if device.exist:
            return Target.from_device(device)
        target = {"kind": "cuda", "arch": f"sm_{_OLDEST}"}
    chosen = target if isinstance(target, Target) else Target(target)
    if str(chosen.kind.name) != "cuda":
        raise ValueError(f"build: the target must be a CUDA one, got {chosen.kind.name}")
    return chosen if chosen.host is not None else chosen.with_host(Target(_HOST))


def _all(module: Any) -> list[Any]:
    """A module and all that it imports, once each."""
    found = [module]
    for one in found:
        found += [imported for imported in one.imports if imported not in found]
    return found


def _owners() -> dict[str, Inputs]:
    """By the function of a generated source that tells its plans: what it is linked with."""
    families = {f.plans: f.inputs for f in FAMILIES}
    return {b.plans: b.inputs for b in BACKENDS.values()} | families


def _sources(module: Any) -> list[tuple[Inputs, str]]:
    """The generated C++ among a module and its imports; TVM has C sources of its own."""
    return [
        (inputs, str(m.inspect_source()))
        for m in _all(module)
        if str(m.kind) == "c"
        for plans, inputs in _owners().items()
        if m.implements_function(plans)
    ]


def library_command(
    source: Path,
    output: Path,
    toolchain: Toolchain | None = None,
    inputs: Sequence[Path] | None = None,
) -> list[str]:
    """The command that builds generated source into a library that `tvm_ffi.load_module` loads.

    inputs : the objects that it is linked with; None: those that the backend says whose source it
        is, by the function that tells its plans.

    Raises ToolchainError if something is missing.
    """
    found = find() if toolchain is None else toolchain
    if inputs is None:
        text = source.read_text(encoding="utf-8")
        owners = (needs for plans, needs in _owners().items() if f"({plans}," in text)
        inputs = next(owners, no_inputs)(text, found, None)
    return shared_command(source, output, found, inputs)
