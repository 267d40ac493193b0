// ---- calls of our own kernels: what their hosts share ---------------------------------------------------
//
// What comes from outside is checked: types, devices, shapes.  Everything in State lives until the
// process ends: at exit the driver may be gone first.

namespace {

using tvm::ffi::TensorView;

enum class Element { kHalf, kBfloat16, kFloat, kDouble };

struct State {
  std::mutex mutex;
  std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Workspace>> workspaces;
  std::map<int, int> multiprocessors;                     // by device
  std::set<std::pair<std::string, std::string>> called;  // calls and their kernels

  static State& get() {
    static State* state = new State();
    return *state;
  }

  Workspace& workspace(int device, cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(mutex);
    std::unique_ptr<Workspace>& found = workspaces[{device, stream}];
    if (!found) found = std::make_unique<Workspace>();
    return *found;
  }

  // Of a device, in multiprocessors.
  int size(int device) {
    std::lock_guard<std::mutex> lock(mutex);
    int& found = multiprocessors[device];
    if (found == 0) {
      check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device),
            "asking for the device's size");
    }
    return found;
  }

  void note(const char* words, const char* kernel) {
    std::lock_guard<std::mutex> lock(mutex);
    if (called.emplace(words, kernel).second && debug_level() >= 4) {
      std::fprintf(stderr, "relay-wgrad: %s -> %s\n", words, kernel);
    }
  }
};

inline char* pointer_of(const TensorView* t) {
  return t == nullptr ? nullptr : static_cast<char*>(t->data_ptr()) + t->byte_offset();
}

inline void expect_on_device(const char* words, const char* name, const TensorView& t,
                             const TensorView& like) {
  if (t.device().device_type != kDLCUDA || t.device().device_id != like.device().device_id) {
    TVM_FFI_THROW(ValueError) << words << ": " << name << " is not on the CUDA device of x";
  }
  if (!t.IsContiguous()) TVM_FFI_THROW(ValueError) << words << ": " << name << " is not contiguous";
}

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

inline void launched(int status, const char* kernel) {
  if (status < 0) check(static_cast<cudaError_t>(-status), std::string("launching ") + kernel);
}

// One line for each call that has run.
inline tvm::ffi::String plans() {
  std::lock_guard<std::mutex> lock(State::get().mutex);
  std::string out;
  for (const auto& [words, kernel] : State::get().called) out += words + "\t" + kernel + "\t0\t0\n";
  return tvm::ffi::String(out);
}

}  // namespace
