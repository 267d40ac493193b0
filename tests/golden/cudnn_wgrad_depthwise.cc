extern "C" __attribute__((weak)) RelayWgradScaledKernel relay_wgrad_scaled_half;

// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"wgrad n=8 c=96 h=56 w=55 k=96 r=3 s=3 stride=2,2 pad=1,1,1,1 dil=2,1 groups=96 layout=NHWC/OHWI/NHWC dtype=f32/f32/f32",
     Kind::kWgrad, true, 2, {2, 2}, {1, 1, 1, 1}, {2, 1}, 96, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0, kAllowTf32, 0, relay_wgrad_scaled_half},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_wgrad_depthwise(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kDataArg, kWeightArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);

// kernel for sm_80 sm_90: relay_wgrad_scaled_half
