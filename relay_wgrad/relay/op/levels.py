"""Relay's levels of support of its operators, a number for the reader (and for scripts)."""

from __future__ import annotations

from collections.abc import Mapping

_LEVELS = {
    1: """acos acosh add asin asinh atan atanh concatenate cos cosh divide erf exp expand_dims
        floor_divide floor_mod log log10 log2 mod multiply nn.batch_norm nn.bias_add nn.dense
        nn.dropout nn.group_norm nn.instance_norm nn.layer_norm nn.log_softmax nn.matmul nn.relu
        nn.softmax rsqrt sigmoid sin sinh sqrt subtract tan tanh trunc_divide trunc_mod""",
    2: """nn.avg_pool1d nn.avg_pool2d nn.avg_pool2d_grad nn.avg_pool3d nn.batch_flatten nn.conv1d
        nn.conv1d_transpose nn.conv2d nn.conv2d_backward_weight nn.conv2d_transpose nn.conv3d
        nn.conv3d_backward_weight nn.conv3d_transpose
        nn.global_avg_pool2d nn.global_max_pool2d nn.l2_normalize nn.lrn
        nn.max_pool1d nn.max_pool2d nn.max_pool2d_grad nn.max_pool3d nn.mirror_pad nn.pad
        nn.upsampling nn.upsampling3d image.dilation2d""",
    3: """abs adv_index arange cast cast_like ceil clip copy cumprod cumsum floor full full_like
        gather gather_nd isfinite isinf isnan meshgrid negative nn.leaky_relu nn.prelu ones
        reinterpret repeat reshape reshape_like reverse reverse_sequence round scatter_elements
        scatter_nd sign sparse_to_dense split squeeze stack take tile transpose trilu trunc unique
        unravel_index zeros""",
    4: """all any bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_to collapse_sum_to equal
        greater greater_equal left_shift less less_equal logical_and logical_not logical_or
        logical_xor max maximum mean min minimum not_equal ones_like power prod right_shift
        strided_set strided_slice sum variance where zeros_like""",
    5: """vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_prior
        vision.multibox_transform_loc vision.non_max_suppression vision.proposal
        image.affine_grid image.crop_and_resize image.grid_sample image.resize1d image.resize2d
        image.resize3d layout_transform nn.batch_to_space_nd nn.depth_to_space
        nn.space_to_batch_nd nn.space_to_depth""",
    6: "argsort searchsorted sort topk",
    10: """annotation.checkpoint annotation.compiler_begin annotation.compiler_end
        annotation.stop_fusion argwhere broadcast_to_like collapse_sum_like fixed_point_multiply
        matrix_set_diag ndarray_size nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d
        nn.adaptive_avg_pool3d nn.adaptive_max_pool1d nn.adaptive_max_pool2d
        nn.adaptive_max_pool3d nn.batch_matmul nn.cross_entropy nn.cross_entropy_with_logits
        nn.dilate one_hot sequence_mask shape_of slice_like""",
    11: "einsum",
}
SUPPORT_LEVELS: Mapping[str, int] = {
    name: level for level, names in _LEVELS.items() for name in names.split()
}
