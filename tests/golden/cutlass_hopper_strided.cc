// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_dgrad_f16_f16_wgmma_strided_128x128x64c2x1_128x128_s6_a8x8x8_mask_sm90;

namespace {

const Conv kConvs[] = {
    {"dgrad n=64 c=256 h=28 w=28 k=512 r=1 s=1 stride=2,2 pad=0,0,0,0 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16 +mask",
     Kind::kDgrad, 1, {2, 2}, {0, 0, 0, 0}, {1, 1}, Element::kHalf, Element::kHalf, Element::kHalf, false,
     {{"relay_wgrad_cutlass_dgrad_f16_f16_wgmma_strided_128x128x64c2x1_128x128_s6_a8x8x8_mask_sm90",
       relay_wgrad_cutlass_dgrad_f16_f16_wgmma_strided_128x128x64c2x1_128x128_s6_a8x8x8_mask_sm90, {16, 16, 16}, 1, 90, true}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_strided(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kWeightArg, kMaskArg, kDataArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_90: relay_wgrad_cutlass_slices
// kernel for sm_90: relay_wgrad_cutlass_dgrad_f16_f16_wgmma_strided_128x128x64c2x1_128x128_s6_a8x8x8_mask_sm90

// ---- dgrad_f16_f16_wgmma_strided_128x128x64c2x1_128x128_s6_a8x8x8_mask_sm90

extern "C" int relay_wgrad_cutlass_dgrad_f16_f16_wgmma_strided_128x128x64c2x1_128x128_s6_a8x8x8_mask_sm90(const RelayWgradCall& call, cudaStream_t stream) {
  return launch_strided<Choice<
      Operator::kDgrad, cutlass::half_t, cutlass::half_t,
      128, 128, 64, 6, 2, 1, 1,
      false, Effect::kMask, false, true>>(call, stream);
}
