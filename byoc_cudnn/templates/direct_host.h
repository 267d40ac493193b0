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

inline void expect_bytes(const char* words, const char* name, const TensorView& t) {
  if (t.dtype().code != kDLUInt || t.dtype().bits != 8 || t.dtype().lanes != 1) {
    TVM_FFI_THROW(TypeError) << words << ": " << name << " must be uint8";
  }
}

inline void expect_count(const char* words, const char* name, const TensorView& t, int64_t count) {
  if (t.numel() != count) {
    TVM_FFI_THROW(ValueError) << words << ": " << name << " has " << t.numel()
                              << " elements, expected " << count;
  }
}

// Arguments of TVM FFI's calling convention.
inline std::vector<TensorView> views_of(const TVMFFIAny* args, int32_t count) {
  const auto* arguments = reinterpret_cast<const tvm::ffi::AnyView*>(args);
  std::vector<TensorView> views;
  for (int32_t i = 0; i < count; ++i) views.push_back(arguments[i].cast<TensorView>());
  return views;
}

// All of a call, as many as it has.
inline std::vector<TensorView> views_of(const char* words, const TVMFFIAny* args, int32_t count,
                                        size_t expected) {
  if (count < 0 || static_cast<size_t>(count) != expected) {
    TVM_FFI_THROW(TypeError) << words << ": expected " << expected << " tensors, got " << count
                             << " arguments";
  }
  return views_of(args, count);
}

// `row` is a family's own: what is known of a call when its code is generated.
template <typename Row, typename Call>
void enqueue(const Row& row, const Call& call, cudaStream_t stream) {
  Called::get().note(row.words, row.name);
  launched(row.kernel(call, stream), row.name);
}

// Once all is checked: on the device of the tensors.
template <typename Row, typename Call>
void launch(const Row& row, const Call& call, const TensorView& like) {
  on_stream(row.words, like.device().device_id,
            [&](cudaStream_t stream) { enqueue(row, call, stream); });
}

// One line for each call that has run.
inline tvm::ffi::String plans() { return tvm::ffi::String(Called::get().lines()); }

}  // namespace
