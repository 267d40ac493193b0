"""Relay 0.19's TOpPattern of each operator, which says how it fuses and serves patterns' paths."""

from __future__ import annotations


class OpPattern:
    """What kind of operator one is, for fusion; the numbers are Relay's."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


_NAMES = {
    OpPattern.ELEMWISE: """
        fixed_point_multiply reinterpret trilu
        abs acos acosh asin asinh atan atanh bitwise_not cast cast_like ceil clip copy cos cosh erf
        exp floor full full_like isfinite isinf isnan log log10 log2 logical_not negative
        nn.leaky_relu nn.relu ones ones_like round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
        zeros zeros_like""",
    OpPattern.BROADCAST: """
        add bitwise_and bitwise_or bitwise_xor broadcast_to broadcast_to_like divide equal
        expand_dims floor_divide floor_mod greater greater_equal left_shift less less_equal
        logical_and logical_or logical_xor maximum minimum mod multiply nn.bias_add nn.prelu
        not_equal power repeat right_shift subtract tile trunc_divide trunc_mod where""",
    OpPattern.INJECTIVE: """
        sparse_reshape
        vision.yolo_reorg nn.dilate strided_set einsum
        adv_index gather gather_nd matrix_set_diag meshgrid ndarray_size nn.batch_to_space_nd
        nn.depth_to_space nn.mirror_pad nn.space_to_batch_nd nn.space_to_depth reverse_sequence
        sequence_mask unravel_index
        concatenate image.affine_grid image.crop_and_resize image.grid_sample image.resize1d
        image.resize2d image.resize3d layout_transform nn.batch_flatten nn.pad nn.upsampling
        nn.upsampling3d
        reshape reshape_like reverse slice_like split squeeze stack strided_slice take transpose""",
    OpPattern.COMM_REDUCE: """
        all any argmax argmin collapse_sum_like collapse_sum_to max mean min prod sum variance""",
    OpPattern.OUT_ELEMWISE_FUSABLE: """
        nn.adaptive_avg_pool1d nn.adaptive_max_pool1d nn.avg_pool1d nn.conv1d nn.conv1d_transpose
        nn.max_pool1d
        nn.adaptive_avg_pool3d nn.adaptive_max_pool3d nn.avg_pool3d nn.conv3d
        nn.conv3d_backward_weight nn.conv3d_transpose nn.max_pool3d
        nn.deformable_conv2d vision.roi_align vision.roi_pool
        image.dilation2d
        nn.adaptive_avg_pool2d nn.adaptive_max_pool2d nn.avg_pool2d nn.avg_pool2d_grad
        nn.batch_matmul nn.batch_norm nn.conv2d nn.conv2d_backward_weight nn.conv2d_transpose
        nn.dense nn.global_avg_pool2d nn.global_max_pool2d nn.log_softmax nn.matmul nn.max_pool2d
        nn.max_pool2d_grad nn.nll_loss nn.softmax one_hot""",
    OpPattern.OPAQUE: """
        arange argsort cumprod cumsum scatter_elements scatter_nd searchsorted shape_of
        sliding_window sort topk
        annotation.checkpoint argwhere unique random.normal random.threefry_generate
        random.threefry_split random.uniform
        vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_prior
        vision.multibox_transform_loc vision.non_max_suppression vision.proposal
        annotation.compiler_begin annotation.compiler_end nn.cross_entropy
        nn.cross_entropy_with_logits nn.dropout nn.lrn annotation.stop_fusion""",
}
KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Relay's TOpIsStateful.
STATEFUL = {"nn.dropout"}
