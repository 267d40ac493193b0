// ---- a kernel that is loaded when the program runs ----------------------------------------------------------

#include <set>

namespace {

// The function of a convolution: two operands, then the result.  `kernel` is the address of what its
// object exports, `name` its name; `dtypes` are the data's, the weight's and the gradient's.
inline tvm::ffi::Function convolution(
    const tvm::ffi::String& problem, const tvm::ffi::String& kind, const tvm::ffi::String& layouts,
    const tvm::ffi::Array<tvm::ffi::String>& dtypes, const tvm::ffi::Array<int64_t>& strides,
    const tvm::ffi::Array<int64_t>& padding, const tvm::ffi::Array<int64_t>& dilation,
    int64_t groups, int64_t alignment, const tvm::ffi::String& name, int64_t kernel) {
  static std::mutex* mutex = new std::mutex();
  static std::set<std::string>* names = new std::set<std::string>();
  Conv conv = {};
  const size_t dims = std::string(layouts).find('D') == std::string::npos ? 2 : 3;
  conv.dims = static_cast<int>(dims);
  attributes(conv, kind, dtypes, strides, padding, dilation, groups, dims);
  conv.nchw = named("layouts", layouts, kLayouts);
  conv.alignment = number("alignment", alignment, 1);
  if (kernel == 0) TVM_FFI_THROW(ValueError) << kWho << ": no kernel for " << std::string(problem);
  conv.kernel = reinterpret_cast<RelayWgradDirectKernel*>(kernel);
  {
    std::lock_guard<std::mutex> lock(*mutex);
    conv.name = names->insert(name).first->c_str();
  }
  Conv& one = kept(conv, problem, {conv.nchw, conv.alignment, kernel}, dims);
  return tvm::ffi::Function::FromExternC(&one, call_kept, nullptr);
}

}  // namespace
