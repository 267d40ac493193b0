extern "C" __attribute__((weak)) RelayWgradScaledKernel relay_wgrad_scaled_half;

// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"wgrad n=2 c=32 d=16 h=24 w=20 k=64 t=3 r=3 s=3 stride=1,1,1 pad=1,1,1,1,1,1 dil=1,1,1 groups=1 layout=NDHWC/ODHWI/NDHWC dtype=f32/f32/f32",
     Kind::kWgrad, true, 3, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, {1, 1, 1}, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0, kAllowTf32 | kDeterministic | kBenchmark, -1, relay_wgrad_scaled_half},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_wgrad_scaled(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kDataArg, kWeightArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);

// kernel for sm_80 sm_90: relay_wgrad_scaled_half
