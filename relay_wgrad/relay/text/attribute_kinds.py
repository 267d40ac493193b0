"""The attribute types that Relay's metadata holds, with their fields in TVM's order.

Relay prints a call's attributes as `meta[relay.attrs.X][0]` where the operator does not declare
their type.
"""

from __future__ import annotations

OBJECT, BOOL, TEXT, INT, FLOAT = "object", "bool", "text", "int", "float"

_POOL = {
    "pool_size": OBJECT, "strides": OBJECT, "dilation": OBJECT, "padding": OBJECT,
    "layout": OBJECT, "out_layout": OBJECT, "ceil_mode": BOOL,
}  # fmt: skip

FIELDS: dict[str, dict[str, str]] = {
    "relay.attrs.InitOpAttrs": {"shape": OBJECT, "dtype": TEXT},
    "relay.attrs.AvgPool2DAttrs": _POOL | {"count_include_pad": BOOL},
    "relay.attrs.MaxPool2DAttrs": _POOL,
    "relay.attrs.AllClassNonMaximumSuppressionAttrs": {"output_format": TEXT},
    "relay.attrs.BatchMatmulAttrs": {"out_dtype": TEXT, "transpose_a": BOOL, "transpose_b": BOOL},
    "relay.attrs.CompilerAttrs": {"compiler": TEXT},
    "relay.attrs.DilateAttrs": {"strides": OBJECT, "dilation_value": FLOAT},
    "relay.attrs.DynExpandDimsAttrs": {"num_newaxis": INT},
    "relay.attrs.GetValidCountsAttrs": {
        "score_threshold": OBJECT, "id_index": INT, "score_index": INT,
    },
    "relay.attrs.NonMaximumSuppressionAttrs": {
        "force_suppress": BOOL, "top_k": INT, "coord_start": INT, "score_index": INT,
        "id_index": INT, "return_indices": BOOL, "invalid_to_bottom": BOOL,
    },
    "relay.attrs.ROIAlignAttrs": {
        "pooled_size": OBJECT, "spatial_scale": FLOAT, "sample_ratio": INT, "layout": TEXT,
        "mode": TEXT,
    },
    "relay.attrs.ROIPoolAttrs": {"pooled_size": OBJECT, "spatial_scale": FLOAT, "layout": TEXT},
    "relay.attrs.ScanopAttrs": {"axis": OBJECT, "dtype": TEXT, "exclusive": OBJECT},
    "relay.attrs.ScatterAddAttrs": {"axis": OBJECT},  # until 0.11
    "relay.attrs.ScatterAttrs": {"axis": OBJECT},  # until 0.11
    "relay.attrs.ScatterElementsAttrs": {"axis": OBJECT, "reduction": OBJECT},  # since 0.12
    "relay.attrs.ScatterNDAttrs": {"mode": OBJECT},
    "relay.attrs.StftAttrs": {
        "n_fft": INT, "hop_length": INT, "win_length": INT, "normalized": BOOL, "onesided": BOOL,
    },
    "relay.attrs.TriluAttrs": {"upper": BOOL},
    "relay.attrs.UniqueAttrs": {"sorted": BOOL, "return_counts": BOOL},
}  # fmt: skip
