// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"dgrad n=2 c=32 d=16 h=24 w=20 k=64 t=3 r=3 s=1 stride=2,1,1 pad=1,1,0,1,1,0 dil=1,2,1 groups=1 layout=NCDHW/OIDHW/NCDHW dtype=f32/f32/f32",
     Kind::kDgrad, false, 3, {2, 1, 1}, {1, 1, 0, 1, 1, 0}, {1, 2, 1}, 1, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, 0, kAllowTf32, -1, nullptr},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_dgrad_volume(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kGradArg, kWeightArg, kDataArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);
