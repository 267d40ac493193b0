// ---- convolutions that are known only when the program runs ----------------------------------------------
//
// The tables of names stand before this.  What comes from outside is checked here, as a generated row's
// values were when it was generated.

namespace {

template <typename T, size_t n>
T named(const char* what, const tvm::ffi::String& name, const std::pair<const char*, T> (&table)[n]) {
  std::string known;
  for (const auto& row : table) {
    if (name == row.first) return row.second;
    known += std::string(known.empty() ? "" : ", ") + row.first;
  }
  TVM_FFI_THROW(ValueError) << "cudnn: " << what << " must be one of " << known << ", got "
                            << std::string(name);
  TVM_FFI_UNREACHABLE();
}

inline int64_t number(const char* what, int64_t value, int64_t least) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (value < least || value >= kLimit) {
    TVM_FFI_THROW(ValueError) << "cudnn: " << what << " must be at least " << least
                              << " and less than " << kLimit << ", got " << value;
  }
  return value;
}

template <typename T>
void count(const char* what, const tvm::ffi::Array<T>& values, size_t wanted) {
  if (values.size() != wanted) {
    TVM_FFI_THROW(ValueError) << "cudnn: " << what << " must have " << wanted << " values, got "
                              << values.size();
  }
}

template <size_t n>
void numbers(const char* what, const tvm::ffi::Array<int64_t>& values, int64_t least,
             int64_t (&out)[n]) {
  count(what, values, n);
  for (size_t i = 0; i < n; ++i) out[i] = number(what, values[i], least);
}

// Plans are found by a convolution's address: equal ones share one, which lives as long as they do.
inline Conv& kept(Conv conv, const std::string& problem) {
  using Key = std::pair<std::string, std::vector<int64_t>>;
  static std::mutex* mutex = new std::mutex();
  static std::map<Key, Conv>* all = new std::map<Key, Conv>();
  std::vector<int64_t> values = {static_cast<int64_t>(conv.kind), conv.channels_last, conv.groups,
                                 conv.data, conv.weight, conv.grad, conv.epilogue, conv.options,
                                 conv.workspace_limit};
  values.insert(values.end(), conv.stride, conv.stride + 2);
  values.insert(values.end(), conv.padding, conv.padding + 4);
  values.insert(values.end(), conv.dilation, conv.dilation + 2);
  std::lock_guard<std::mutex> lock(*mutex);
  const auto found = all->try_emplace({problem, std::move(values)}, conv);
  if (found.second) found.first->second.problem = found.first->first.first.c_str();
  return found.first->second;
}

int call_kept(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  const Conv& conv = *static_cast<const Conv*>(self);
  switch (conv.kind) {
    case Kind::kFprop:
      return call(conv, {kDataArg, kWeightArg, kGradArg}, args, count);
    case Kind::kDgrad:
      return call(conv, {kGradArg, kWeightArg, kDataArg}, args, count);
    default:
      return call(conv, {kGradArg, kDataArg, kWeightArg}, args, count);
  }
}

// The function of a convolution: two operands, then the result; any sizes.
// `problem` is for messages; `dtypes` are the data's, the weight's and the gradient's.
inline tvm::ffi::Function convolution(
    const tvm::ffi::String& problem, const tvm::ffi::String& kind, const tvm::ffi::String& layouts,
    const tvm::ffi::Array<tvm::ffi::String>& dtypes, const tvm::ffi::Array<int64_t>& strides,
    const tvm::ffi::Array<int64_t>& padding, const tvm::ffi::Array<int64_t>& dilation,
    int64_t groups, const tvm::ffi::Array<tvm::ffi::String>& options, int64_t workspace_limit) {
  Conv conv = {};
  conv.kind = named("kind", kind, kKinds);
  conv.channels_last = named("layouts", layouts, kLayouts);
  numbers("strides", strides, 1, conv.stride);
  numbers("padding", padding, 0, conv.padding);
  numbers("dilation", dilation, 1, conv.dilation);
  if (conv.padding[0] != conv.padding[2] || conv.padding[1] != conv.padding[3]) {
    TVM_FFI_THROW(ValueError) << "cudnn: padding must be symmetric, got (" << conv.padding[0] << ", "
                              << conv.padding[1] << ", " << conv.padding[2] << ", "
                              << conv.padding[3] << ")";
  }
  conv.groups = number("groups", groups, 1);
  count("dtypes", dtypes, 3);
  conv.data = named("dtype", dtypes[0], kDtypes);
  conv.weight = named("dtype", dtypes[1], kDtypes);
  conv.grad = named("dtype", dtypes[2], kDtypes);
  for (const tvm::ffi::String& option : options) conv.options |= named("option", option, kOptions);
  if (workspace_limit < -1) {
    TVM_FFI_THROW(ValueError) << "cudnn: workspace_limit must be at least 0, or -1 for none, got "
                              << workspace_limit;
  }
  conv.workspace_limit = workspace_limit;
  return tvm::ffi::Function::FromExternC(&kept(conv, problem), call_kept, nullptr);
}

}  // namespace
