// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_dgrad_tf32_f32_optimized_strided_64x64x16_32x32_s5_a4x4x4_plain_sm80;

namespace {

const Conv kConvs[] = {
    {"dgrad n=2 c=64 h=14 w=14 k=64 r=3 s=3 stride=2,1 pad=1,0,1,2 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f32/f32/f32",
     Kind::kDgrad, 1, {2, 1}, {1, 0, 1, 2}, {1, 1}, Element::kFloat, Element::kFloat, Element::kFloat, false,
     {{"relay_wgrad_cutlass_dgrad_tf32_f32_optimized_strided_64x64x16_32x32_s5_a4x4x4_plain_sm80",
       relay_wgrad_cutlass_dgrad_tf32_f32_optimized_strided_64x64x16_32x32_s5_a4x4x4_plain_sm80, {16, 16, 16}, 1, 80, false}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_dgrad_strided(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kWeightArg, kDataArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_80: relay_wgrad_cutlass_slices
// kernel for sm_80: relay_wgrad_cutlass_dgrad_tf32_f32_optimized_strided_64x64x16_32x32_s5_a4x4x4_plain_sm80

// ---- dgrad_tf32_f32_optimized_strided_64x64x16_32x32_s5_a4x4x4_plain_sm80

#include "cutlass/conv/kernel/default_conv2d_dgrad.h"

namespace {

using Default = cutlass::conv::kernel::DefaultConv2dDgrad<
    float, TensorNHWC,
    float, TensorNHWC,
    float, TensorNHWC,
    float, OpClassTensorOp, cutlass::arch::Sm80,
    GemmShape<64, 64, 16>,
    GemmShape<32, 32, 16>,
    GemmShape<16, 8, 8>,
    OutputOp<float, 4, false, false, false, false, false, false>,
    cutlass::conv::threadblock::StridedDgradIdentityThreadblockSwizzle<4>,
    5, cutlass::arch::OpMultiplyAdd,
    IteratorAlgorithm::kOptimized,
    StrideSupport::kStrided, 4, 4>;
using Kernel = Default::Kernel;

}  // namespace

extern "C" int relay_wgrad_cutlass_dgrad_tf32_f32_optimized_strided_64x64x16_32x32_s5_a4x4x4_plain_sm80(const RelayWgradCall& call, cudaStream_t stream) {
  return launch<Kernel, false>(call, stream);
}
