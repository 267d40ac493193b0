// ---- calls of our own kernels: what their hosts share ---------------------------------------------------
//
// What comes from outside is checked: types, devices, shapes.

namespace {

using tvm::ffi::TensorView;

enum class Element { kHalf, kBfloat16, kFloat, kDouble };

inline void expect_dtype(const char* words, const char* name, const TensorView& t, Element element) {
  const DLDataType d = t.dtype();
  const int bits = element == Element::kDouble ? 64 : element == Element::kFloat ? 32 : 16;
  const int code = element == Element::kBfloat16 ? kDLBfloat : kDLFloat;
  if (d.code != code || d.bits != bits || d.lanes != 1) {
    TVM_FFI_THROW(TypeError) << words << ": " << name << " must be "
                             << (code == kDLBfloat ? "bfloat" : "float") << bits << ", got "
                             << (d.code == kDLBfloat ? "bfloat" : d.code == kDLFloat ? "float" : "code ")
                             << int{d.bits};
  }
}

// How many windows there are along an axis: as many as end within the padding, or as begin before it.
inline void expect_windows(const char* words, int64_t pixels, int64_t windows, int64_t taps,
                           int64_t stride, int64_t before, int64_t after) {
  const int64_t slack = pixels + before + after - taps;
  const int64_t least = slack < 0 ? 0 : slack / stride + 1, most = (slack + stride - 1) / stride + 1;
  if (windows != least && !(windows == most && (windows - 1) * stride < pixels + before)) {
    TVM_FFI_THROW(ValueError) << words << ": " << pixels << " pixels have " << least
                              << " windows, got " << windows;
  }
}

// Arguments of TVM FFI's calling convention.
inline std::vector<TensorView> views_of(const TVMFFIAny* args, int32_t count) {
  const auto* arguments = reinterpret_cast<const tvm::ffi::AnyView*>(args);
  std::vector<TensorView> views;
  for (int32_t i = 0; i < count; ++i) views.push_back(arguments[i].cast<TensorView>());
  return views;
}

// One line for each call that has run.
inline tvm::ffi::String plans() { return tvm::ffi::String(Called::get().lines()); }

}  // namespace
