"""The one table of kernel families; `family.py` says what a family is."""

from . import (
    depthwise,
    depthwise_bands,
    depthwise_shares,
    few_filters,
    first_layer,
    grouped,
    narrow,
    planes,
)
from .family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *depthwise.FAMILIES,
        depthwise_bands.FAMILY,
        depthwise_shares.FAMILY,
        grouped.FAMILY,
        narrow.FAMILY,
        few_filters.FAMILY,
        first_layer.FAMILY,
        planes.FAMILY,
    )
}
"""By name.  Of the kernels of all families that take a problem, the fastest expected is chosen."""
