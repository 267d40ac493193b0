// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_fprop_f16_f16_fewchannels_unit_64x64x32_32x32_s2_a1x1x8_biasrelu_sm80;

namespace {

const Conv kConvs[] = {
    {"fprop n=2 c=3 h=32 w=32 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16 +bias +relu",
     Kind::kFprop, 1, {2, 2}, {3, 3, 3, 3}, {1, 1}, Element::kHalf, Element::kHalf, Element::kHalf, true,
     {{"relay_wgrad_cutlass_fprop_f16_f16_fewchannels_unit_64x64x32_32x32_s2_a1x1x8_biasrelu_sm80",
       relay_wgrad_cutlass_fprop_f16_f16_fewchannels_unit_64x64x32_32x32_s2_a1x1x8_biasrelu_sm80, {2, 2, 16}, 1, 80, false}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_fprop_stem(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kDataArg, kWeightArg, kBiasArg, kGradArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_80: relay_wgrad_cutlass_slices
// kernel for sm_80: relay_wgrad_cutlass_fprop_f16_f16_fewchannels_unit_64x64x32_32x32_s2_a1x1x8_biasrelu_sm80

// ---- fprop_f16_f16_fewchannels_unit_64x64x32_32x32_s2_a1x1x8_biasrelu_sm80

#include "cutlass/conv/kernel/default_conv2d_fprop.h"

namespace {

using Default = cutlass::conv::kernel::DefaultConv2dFprop<
    cutlass::half_t, TensorNHWC,
    cutlass::half_t, TensorNHWC,
    cutlass::half_t, TensorNHWC,
    float, OpClassTensorOp, cutlass::arch::Sm80,
    GemmShape<64, 64, 32>,
    GemmShape<32, 32, 32>,
    GemmShape<16, 8, 16>,
    OutputOp<cutlass::half_t, 8, true, true, false, false, false, false>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>,
    2, cutlass::arch::OpMultiplyAdd,
    IteratorAlgorithm::kFewChannels,
    StrideSupport::kStrided, 1, 1>;
using Kernel = Default::Kernel;

}  // namespace

extern "C" int relay_wgrad_cutlass_fprop_f16_f16_fewchannels_unit_64x64x32_32x32_s2_a1x1x8_biasrelu_sm80(const RelayWgradCall& call, cudaStream_t stream) {
  return launch<Kernel, true>(call, stream);
}
