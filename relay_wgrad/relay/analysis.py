"""Questions about programs, under Relay's names: each is answered in a module of its own."""

from .annotated_regions import AnnotatedRegion, AnnotatedRegionSet
from .call_graph import CallGraph
from .extraction import (
    extract_fused_functions,
    extract_intermdeiate_expr,
    get_calibration_data,
    list_op_freqs,
)
from .features import Feature, detect_feature
from .layer_count import count_layers
from .mac_count import get_total_mac_number
from .scopes import check_basic_block_normal_form
from .type_kinds import check_kind
from .variables import (
    all_type_vars,
    all_vars,
    bound_type_vars,
    bound_vars,
    free_type_vars,
    free_vars,
    post_order_visit,
)
from .well_formed import well_formed

__all__ = [
    "AnnotatedRegion",
    "AnnotatedRegionSet",
    "CallGraph",
    "Feature",
    "all_type_vars",
    "all_vars",
    "bound_type_vars",
    "bound_vars",
    "check_basic_block_normal_form",
    "check_kind",
    "count_layers",
    "detect_feature",
    "extract_fused_functions",
    "extract_intermdeiate_expr",
    "free_type_vars",
    "free_vars",
    "get_calibration_data",
    "get_total_mac_number",
    "list_op_freqs",
    "post_order_visit",
    "well_formed",
]
