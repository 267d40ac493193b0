// ---- the convolutions of this module -------------------------------------------------------------

extern "C" __attribute__((visibility("hidden"))) RelayWgradKernel relay_wgrad_cutlass_wgrad_bf16_f32_gemm_unit_128x128x64c2x1_128x128_s6_a8x8x4_plain_sm90;

namespace {

const Conv kConvs[] = {
    {"wgrad n=64 c=256 h=28 w=28 k=512 r=1 s=1 stride=1,1 pad=0,0,0,0 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=bf16/bf16/bf16",
     Kind::kWgrad, 1, {1, 1}, {0, 0, 0, 0}, {1, 1}, Element::kBfloat16, Element::kBfloat16, Element::kBfloat16, false,
     {{"relay_wgrad_cutlass_wgrad_bf16_f32_gemm_unit_128x128x64c2x1_128x128_s6_a8x8x4_plain_sm90",
       relay_wgrad_cutlass_wgrad_bf16_f32_gemm_unit_128x128x64c2x1_128x128_s6_a8x8x4_plain_sm90, {16, 16, 8}, 16, 90, true}}},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_plain(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kDataArg, kWeightArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cutlass_release, release_workspaces);

// kernel for sm_90: relay_wgrad_cutlass_slices
// kernel for sm_90: relay_wgrad_cutlass_wgrad_bf16_f32_gemm_unit_128x128x64c2x1_128x128_s6_a8x8x4_plain_sm90

// ---- wgrad_bf16_f32_gemm_unit_128x128x64c2x1_128x128_s6_a8x8x4_plain_sm90

extern "C" int relay_wgrad_cutlass_wgrad_bf16_f32_gemm_unit_128x128x64c2x1_128x128_s6_a8x8x4_plain_sm90(const RelayWgradCall& call, cudaStream_t stream) {
  return launch_plain<Choice<
      Operator::kWgrad, cutlass::bfloat16_t, float,
      128, 128, 64, 6, 2, 1, 1,
      false, Effect::kNone, false, false>>(call, stream);
}
