// ---- cuDNN's ----------------------------------------------------------------------------------------------

namespace {

// The function of a convolution: two operands, then the result; any sizes.
// `problem` is for messages; `dtypes` are the data's, the weight's and the gradient's.
inline tvm::ffi::Function convolution(
    const tvm::ffi::String& problem, const tvm::ffi::String& kind, const tvm::ffi::String& layouts,
    const tvm::ffi::Array<tvm::ffi::String>& dtypes, const tvm::ffi::Array<int64_t>& strides,
    const tvm::ffi::Array<int64_t>& padding, const tvm::ffi::Array<int64_t>& dilation,
    int64_t groups, const tvm::ffi::Array<tvm::ffi::String>& options, int64_t workspace_limit) {
  Conv conv = {};
  conv.dims = 2;
  attributes(conv, kind, dtypes, strides, padding, dilation, groups);
  conv.channels_last = named("layouts", layouts, kLayouts);
  if (conv.padding[0] != conv.padding[2] || conv.padding[1] != conv.padding[3]) {
    TVM_FFI_THROW(ValueError) << "cudnn: padding must be symmetric, got (" << conv.padding[0] << ", "
                              << conv.padding[1] << ", " << conv.padding[2] << ", "
                              << conv.padding[3] << ")";
  }
  for (const tvm::ffi::String& option : options) conv.options |= named("option", option, kOptions);
  if (workspace_limit < -1) {
    TVM_FFI_THROW(ValueError) << "cudnn: workspace_limit must be at least 0, or -1 for none, got "
                              << workspace_limit;
  }
  conv.workspace_limit = workspace_limit;
  Conv& one = kept(conv, problem, {conv.channels_last, conv.epilogue, conv.options, workspace_limit});
  return tvm::ffi::Function::FromExternC(&one, call_kept, nullptr);
}

}  // namespace
