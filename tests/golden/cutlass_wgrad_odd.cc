// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_wgrad_f16_f32_optimized_unit_64x64x32_32x32_s2_a1x1x1_plain_sm80;

namespace {

const Conv kConvs[] = {
    {"wgrad n=2 c=31 h=14 w=13 k=33 r=3 s=2 stride=2,3 pad=0,0,0,0 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f16/f32/f16",
     Kind::kWgrad, 1, {2, 3}, {0, 0, 0, 0}, {1, 1}, Element::kHalf, Element::kFloat, Element::kHalf, false,
     {{"relay_wgrad_cutlass_wgrad_f16_f32_optimized_unit_64x64x32_32x32_s2_a1x1x1_plain_sm80",
       relay_wgrad_cutlass_wgrad_f16_f32_optimized_unit_64x64x32_32x32_s2_a1x1x1_plain_sm80, {2, 2, 4}, 1, 80, false}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_wgrad_odd(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kDataArg, kWeightArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_80: relay_wgrad_cutlass_slices
// kernel for sm_80: relay_wgrad_cutlass_wgrad_f16_f32_optimized_unit_64x64x32_32x32_s2_a1x1x1_plain_sm80

// ---- wgrad_f16_f32_optimized_unit_64x64x32_32x32_s2_a1x1x1_plain_sm80

#include "cutlass/conv/kernel/default_conv2d_wgrad.h"

namespace {

using Default = cutlass::conv::kernel::DefaultConv2dWgrad<
    cutlass::half_t, TensorNHWC,
    cutlass::half_t, TensorNHWC,
    float, TensorNHWC,
    float, OpClassTensorOp, cutlass::arch::Sm80,
    GemmShape<64, 64, 32>,
    GemmShape<32, 32, 32>,
    GemmShape<16, 8, 16>,
    OutputOp<float, 1, false, false, false, false, false, false>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>,
    2, cutlass::arch::OpMultiplyAdd,
    IteratorAlgorithm::kOptimized,
    StrideSupport::kStrided, 1, 1>;
using Kernel = Default::Kernel;

}  // namespace

extern "C" int relay_wgrad_cutlass_wgrad_f16_f32_optimized_unit_64x64x32_32x32_s2_a1x1x1_plain_sm80(const RelayWgradCall& call, cudaStream_t stream) {
  return launch<Kernel, false>(call, stream);
}
