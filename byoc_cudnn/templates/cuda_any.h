// ---- convolutions that are known only when the program runs ----------------------------------------------
//
// What comes from outside is checked here, as a generated row's values were when it was generated.  `kWho`
// says whose library it is, and stands before this with the tables of names.

#include <utility>
#include <vector>

namespace {

template <typename T, size_t n>
T named(const char* what, const tvm::ffi::String& name, const std::pair<const char*, T> (&table)[n]) {
  std::string known;
  for (const auto& row : table) {
    if (name == row.first) return row.second;
    known += std::string(known.empty() ? "" : ", ") + row.first;
  }
  TVM_FFI_THROW(ValueError) << kWho << ": " << what << " must be one of " << known << ", got "
                            << std::string(name);
  TVM_FFI_UNREACHABLE();
}

inline int64_t number(const char* what, int64_t value, int64_t least) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (value < least || value >= kLimit) {
    TVM_FFI_THROW(ValueError) << kWho << ": " << what << " must be at least " << least
                              << " and less than " << kLimit << ", got " << value;
  }
  return value;
}

template <typename T>
void count(const char* what, const tvm::ffi::Array<T>& values, size_t wanted) {
  if (values.size() != wanted) {
    TVM_FFI_THROW(ValueError) << kWho << ": " << what << " must have " << wanted << " values, got "
                              << values.size();
  }
}

inline void numbers(const char* what, const tvm::ffi::Array<int64_t>& values, int64_t least,
                    int64_t* out, size_t wanted) {
  count(what, values, wanted);
  for (size_t i = 0; i < wanted; ++i) out[i] = number(what, values[i], least);
}

// What every library asks of a convolution's attributes; `dims` of an image.
inline void attributes(Conv& conv, const tvm::ffi::String& kind,
                       const tvm::ffi::Array<tvm::ffi::String>& dtypes,
                       const tvm::ffi::Array<int64_t>& strides, const tvm::ffi::Array<int64_t>& padding,
                       const tvm::ffi::Array<int64_t>& dilation, int64_t groups, size_t dims = 2) {
  conv.kind = named("kind", kind, kKinds);
  numbers("strides", strides, 1, conv.stride, dims);
  numbers("padding", padding, 0, conv.padding, 2 * dims);
  numbers("dilation", dilation, 1, conv.dilation, dims);
  conv.groups = static_cast<int>(number("groups", groups, 1));
  count("dtypes", dtypes, 3);
  conv.data = named("dtype", dtypes[0], kDtypes);
  conv.weight = named("dtype", dtypes[1], kDtypes);
  conv.grad = named("dtype", dtypes[2], kDtypes);
}

// One of equal convolutions, at an address that stays; `values` are what it differs in beside its text.
using ConvKey = std::pair<std::string, std::vector<int64_t>>;

inline Conv& kept(Conv conv, const std::string& problem, std::vector<int64_t> values, size_t dims = 2) {
  static std::mutex* mutex = new std::mutex();
  static std::map<ConvKey, Conv>* all = new std::map<ConvKey, Conv>();
  for (const int64_t value : {static_cast<int64_t>(conv.kind), static_cast<int64_t>(conv.groups),
                              static_cast<int64_t>(conv.data), static_cast<int64_t>(conv.weight),
                              static_cast<int64_t>(conv.grad)}) {
    values.push_back(value);
  }
  values.insert(values.end(), conv.stride, conv.stride + dims);
  values.insert(values.end(), conv.padding, conv.padding + 2 * dims);
  values.insert(values.end(), conv.dilation, conv.dilation + dims);
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

}  // namespace
