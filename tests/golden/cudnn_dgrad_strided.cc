// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"dgrad n=8 c=128 h=56 w=56 k=128 r=3 s=3 stride=2,2 pad=1,1,1,1 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f32/f32/f32",
     Kind::kDgrad, true, 2, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0, 0, -1, nullptr},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_dgrad_strided(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kWeightArg, kDataArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);
