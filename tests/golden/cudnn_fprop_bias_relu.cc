// ---- the convolutions of this module -------------------------------------------------------------

namespace {

const Conv kConvs[] = {
    {"fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 stride=1,1 pad=1,1,1,1 dil=1,1 groups=1 layout=NHWC/OHWI/NHWC dtype=bf16/bf16/bf16 +bias +relu",
     Kind::kFprop, true, 2, {1, 1}, {1, 1, 1, 1}, {1, 1}, 1, CUDNN_DATA_BFLOAT16, CUDNN_DATA_BFLOAT16, CUDNN_DATA_BFLOAT16, kBias | kRelu, kAllowTf32, -1, nullptr},
};

}  // namespace

extern "C" {

TVM_FFI_DLL_EXPORT int __tvm_ffi_fprop_bias_relu(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return call(kConvs[0], {kDataArg, kWeightArg, kBiasArg, kGradArg}, args, count);
}

}  // extern "C"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_plans, plans);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_cudnn_release, release_workspaces);
