// ---- cuDNN's ----------------------------------------------------------------------------------------------

namespace {

// The function of a convolution: two operands, then the result; any sizes.
// `problem` is for messages; `dtypes` are the data's, the weight's and the gradient's; `scaled` is the
// address of the kernel that may scale operands, or 0.
inline tvm::ffi::Function convolution(
    const tvm::ffi::String& problem, const tvm::ffi::String& kind, const tvm::ffi::String& layouts,
    const tvm::ffi::Array<tvm::ffi::String>& dtypes, const tvm::ffi::Array<int64_t>& strides,
    const tvm::ffi::Array<int64_t>& padding, const tvm::ffi::Array<int64_t>& dilation,
    int64_t groups, const tvm::ffi::Array<tvm::ffi::String>& options, int64_t workspace_limit,
    int64_t scaled) {
  Conv conv = {};
  conv.channels_last = named("layouts", layouts, kLayouts);
  const size_t dims = std::string(layouts).find('D') == std::string::npos ? 2 : 3;
  conv.dims = static_cast<int>(dims);
  attributes(conv, kind, dtypes, strides, padding, dilation, groups, dims);
  if (!std::equal(conv.padding, conv.padding + dims, conv.padding + dims)) {
    std::string got;
    for (size_t i = 0; i < 2 * dims; ++i) got += (i ? ", " : "") + std::to_string(conv.padding[i]);
    TVM_FFI_THROW(ValueError) << "cudnn: padding must be symmetric, got (" << got << ")";
  }
  for (const tvm::ffi::String& option : options) conv.options |= named("option", option, kOptions);
  if (workspace_limit < -1) {
    TVM_FFI_THROW(ValueError) << "cudnn: workspace_limit must be at least 0, or -1 for none, got "
                              << workspace_limit;
  }
  conv.workspace_limit = workspace_limit;
  conv.scaled = reinterpret_cast<RelayWgradScaledKernel*>(scaled);
  Conv& one = kept(
      conv, problem, {conv.channels_last, conv.epilogue, conv.options, workspace_limit, scaled}, dims);
  return tvm::ffi::Function::FromExternC(&one, call_kept, nullptr);
}

}  // namespace
