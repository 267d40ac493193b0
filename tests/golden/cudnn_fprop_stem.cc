// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"fprop n=32 c=3 h=224 w=224 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16",
     Kind::kFprop, true, 2, {2, 2}, {3, 3, 3, 3}, {1, 1}, 1, CUDNN_DATA_HALF, CUDNN_DATA_HALF, CUDNN_DATA_HALF, 0, kAllowTf32 | kBenchmark, -1, nullptr},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_fprop_stem(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kDataArg, kWeightArg, kGradArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);
