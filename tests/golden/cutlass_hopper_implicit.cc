// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_fprop_f16_f16_wgmma_unit_128x256x64_64x256_s4_a8x8x8_biasrelu_sm90;

namespace {

const Conv kConvs[] = {
    {"fprop n=64 c=256 h=28 w=28 k=256 r=3 s=3 stride=1,1 pad=1,1,1,1 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16 +bias +relu",
     Kind::kFprop, 1, {1, 1}, {1, 1, 1, 1}, {1, 1}, Element::kHalf, Element::kHalf, Element::kHalf, true,
     {{"relay_wgrad_cutlass_fprop_f16_f16_wgmma_unit_128x256x64_64x256_s4_a8x8x8_biasrelu_sm90",
       relay_wgrad_cutlass_fprop_f16_f16_wgmma_unit_128x256x64_64x256_s4_a8x8x8_biasrelu_sm90, {16, 16, 16}, 1, 90, true}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_implicit(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kDataArg, kWeightArg, kBiasArg, kGradArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_90: relay_wgrad_cutlass_slices
// kernel for sm_90: relay_wgrad_cutlass_fprop_f16_f16_wgmma_unit_128x256x64_64x256_s4_a8x8x8_biasrelu_sm90

// ---- fprop_f16_f16_wgmma_unit_128x256x64_64x256_s4_a8x8x8_biasrelu_sm90

extern "C" int relay_wgrad_cutlass_fprop_f16_f16_wgmma_unit_128x256x64_64x256_s4_a8x8x8_biasrelu_sm90(const RelayWgradCall& call, cudaStream_t stream) {
  return launch_implicit<Choice<
      Operator::kFprop, cutlass::half_t, cutlass::half_t,
      128, 256, 64, 4, 1, 1, 1,
      true, Effect::kAddRelu, true, false>>(call, stream);
}
