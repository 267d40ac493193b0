"""The one table of kernel families; `family.py` says what a family is."""

from . import bands, depthwise, few, first, grouped, shares
from .family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *depthwise.FAMILIES,
        bands.FAMILY,
        shares.FAMILY,
        grouped.FAMILY,
        few.FAMILY,
        first.FAMILY,
    )
}
"""By name.  Of the kernels of all families that take a problem, the fastest expected is chosen."""
