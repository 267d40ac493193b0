"""A convolution over the devices of a mesh whose images are shared out: each runs its own.

XLA cannot look into a foreign call and would gather all images on every device.  A wgrad's parts
are summed.  Other axes are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..problem import ConvProblem


def ask_for_devices(primitive: Any) -> None:
    """JAX tells a primitive's lowering of the devices where it knows that it will ask.  Where this
    JAX has no such list, XLA gathers all images: slower, and right."""
    asking = getattr(
        import_module("jax._src.dispatch"), "prim_requires_devices_during_lowering", None
    )
    if isinstance(asking, set):
        asking.add(primitive)


def alike(first: Any, second: Any) -> tuple[Any, Any]:
    """Two arrays that vary over the same axes of a mesh, as they must within `shard_map`."""
    own = [_varying(x) for x in (first, second)]
    both = own[0] | own[1]
    first, second = (
        _made_to_vary(x, tuple(both - axes)) if axes != both else x
        for x, axes in zip((first, second), own, strict=True)
    )
    return first, second


def _varying(x: Any) -> frozenset[str]:
    aval = jax.typeof(x)
    found = getattr(aval, "manual_axis_type", None)  # of JAX 0.10; before it was `vma`
    axes: frozenset[str] = getattr(aval, "vma", frozenset()) if found is None else found.varying
    return axes


def _made_to_vary(x: Any, axes: tuple[str, ...]) -> Any:
    if hasattr(lax, "pcast"):
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)


def is_shared(axes: Any) -> bool:
    """Whether a program's lowering is for several devices among which XLA shares it out."""
    return len(getattr(axes, "device_assignment", None) or ()) > 1


def over_images(problem: ConvProblem, built: Callable[[ConvProblem], Any], alone: Any) -> Any:
    """A function of the problem's operands that JAX may partition.

    built : a problem's function on one device.
    alone : the whole problem's, of a program that is not partitioned after all.
    """
    whole = custom_partitioning(alone)
    places = [_place(problem, role) for role in problem.roles]

    def shardings(mesh: Any, infos: Any) -> tuple[list[NamedSharding], tuple[str, ...]]:
        """Those of operands and result, and the mesh's axes that share the images."""
        axes: tuple[str, ...] = ()
        for info, place in zip(infos, places, strict=False):
            spec = tuple(info.sharding.spec) if info.sharding is not None else ()
            found = spec[place] if place is not None and place < len(spec) else None
            axes = axes or ((found,) if isinstance(found, str) else tuple(found or ()))
        count = 1
        for name in axes:
            count *= mesh.shape[name]
        if problem.n % count:
            axes = ()
        made = [
            PartitionSpec(
                *(axes or None if axis == place else None for axis in range(problem.rank + 2))
            )
            for place in places
        ]
        return [NamedSharding(mesh, spec) for spec in made], axes

    def infer(mesh: Any, operands: Any, result: Any) -> NamedSharding:
        return shardings(mesh, operands)[0][2]

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        made, axes = shardings(mesh, (*operands, result))
        count = 1
        for name in axes:
            count *= mesh.shape[name]
        run = built(replace(problem, n=problem.n // count))

        def local(first: Any, second: Any) -> Any:
            out = run(first, second)
            return lax.psum(out, axes) if axes and places[2] is None else out

        return mesh, local, made[2], (made[0], made[1])

    # Shardy's: all tensors' images are one factor; every other axis is gathered.
    factors = [
        ["n" if axis == place else f"x{tensor}{axis}" for axis in range(problem.rank + 2)]
        for tensor, place in enumerate(places)
    ]
    first, second, result = map(" ".join, factors)
    whole.def_partition(
        partition=partition, infer_sharding_from_operands=infer,
        sharding_rule=f"{first}, {second} -> {result}",
        reduction_factors=("n",) if places[2] is None else (),
        need_replication_factors=tuple(x for names in factors for x in names if x != "n"),
    )  # fmt: skip
    return whole


def _place(problem: ConvProblem, role: str) -> int | None:
    """Where a tensor's images are."""
    layout = problem.layout(role)
    return layout.index("N") if "N" in layout and role != "weight" else None
