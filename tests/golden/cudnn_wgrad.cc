// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 stride=1,1 pad=1,1,1,1 dil=1,1 groups=1 layout=NCHW/OIHW/NCHW dtype=f32/f32/f32",
     Kind::kWgrad, false, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0, kAllowTf32 | kDeterministic, -1, nullptr},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_wgrad(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kDataArg, kWeightArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);
