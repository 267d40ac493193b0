// ---- calls ----------------------------------------------------------------------------------------------
//
// What comes from outside is checked here: types, devices, shapes, alignment.  Everything in State
// lives until the process ends: at exit the driver may be gone first.

namespace {

using tvm::ffi::TensorView;

enum class Kind { kFprop, kDgrad, kWgrad };
enum class Element { kHalf, kBfloat16, kFloat };  // in the order of relay_wgrad_cutlass_slices

// A kernel for a convolution.
struct Variant {
  const char* name;
  RelayWgradKernel* kernel;
  int64_t alignment[3];  // bytes at which first operand, second one and result must lie
  int slices;            // of a wgrad's sum
  int arch;              // the oldest GPU that the object runs on
  bool alone;            // and the only one
};

// What is known of a convolution when its code is generated; sizes come with the tensors.
struct Conv {
  const char* problem;  // as the report prints it
  Kind kind;
  int groups;
  int64_t stride[2], padding[4], dilation[2];  // padding: top, left, bottom, right
  Element data, weight, grad;
  bool bias;
  Variant variants[5];  // as many GPUs as there are options of; the newest first, then empty ones
};

struct Operands {
  const TensorView *data, *weight, *grad;  // one of them is the result
  const TensorView *bias, *mask;  // a mask or a residual, of the result's shape
};

struct State {
  std::mutex mutex;
  std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Workspace>> workspaces;
  std::map<int, int> archs;                                // by device
  // Bytes of workspace of what was called.
  std::map<std::pair<const Conv*, const Variant*>, std::pair<int64_t, bool>> called;

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

  int arch(int device) {
    std::lock_guard<std::mutex> lock(mutex);
    int& found = archs[device];
    if (found == 0) {
      int major = 0, minor = 0;
      check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
            "asking for the device's generation");
      check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
            "asking for the device's generation");
      found = 10 * major + minor;
    }
    return found;
  }

  void note(const Conv& conv, const Variant& variant, int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    std::pair<int64_t, bool>& known = called[{&conv, &variant}];
    if (!known.second && debug_level() >= 4) {
      std::fprintf(stderr, "relay-wgrad: %s -> %s, slices %d, workspace %lld\n", conv.problem,
                   variant.name, variant.slices, static_cast<long long>(bytes));
    }
    known = {bytes, true};
  }
};

inline int64_t bytes_of(Element element) { return element == Element::kFloat ? 4 : 2; }

inline void expect(const Conv& conv, const char* name, const TensorView& t, Element element,
                   int64_t alignment, const TensorView& like) {
  expect_tensor(conv.problem, name, t, element == Element::kBfloat16 ? kDLBfloat : kDLFloat,
                element == Element::kFloat ? 32 : 16, like);
  if (reinterpret_cast<uintptr_t>(pointer_of(&t)) % static_cast<uintptr_t>(alignment) != 0) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": " << name << " must lie at a multiple of "
                              << alignment << " bytes";
  }
}

// Kernels count bytes in 32 bits, or, where they run on one GPU alone, pixels.
inline void expect_small(const Conv& conv, const Variant& variant, const char* name,
                         const TensorView& t, Element element) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const int64_t bytes = t.numel() * bytes_of(element);
  const int64_t pixels = t.size(0) * t.size(1) * t.size(2);
  if (variant.alone ? pixels >= kMost : bytes >= kMost) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": " << name << " has "
                              << (variant.alone ? pixels : bytes)
                              << (variant.alone ? " pixels" : " bytes")
                              << "; CUTLASS takes fewer than 2**31";
  }
}

// The call of a kernel, once the shapes fit each other; pointers are not in it yet.
inline RelayWgradCall sizes_of(const Conv& conv, const Variant& variant, const Operands& t) {
  const bool fprop = conv.kind == Kind::kFprop, wgrad = conv.kind == Kind::kWgrad;
  const int64_t* at = variant.alignment;
  expect(conv, "data", *t.data, conv.data, at[fprop ? 0 : wgrad ? 1 : 2], *t.data);
  expect(conv, "weight", *t.weight, conv.weight, at[wgrad ? 2 : 1], *t.data);
  expect(conv, "gradient", *t.grad, conv.grad, at[fprop ? 2 : 0], *t.data);
  if (t.data->ndim() != 4 || t.weight->ndim() != 4 || t.grad->ndim() != 4) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": a tensor does not have 4 dimensions";
  }
  expect_small(conv, variant, "data", *t.data, conv.data);
  expect_small(conv, variant, "weight", *t.weight, wgrad ? Element::kFloat : conv.weight);
  expect_small(conv, variant, "gradient", *t.grad, conv.grad);
  const int64_t n = t.data->size(0), h = t.data->size(1), w = t.data->size(2), c = t.data->size(3);
  const int64_t k = t.weight->size(0), r = t.weight->size(1), s = t.weight->size(2);
  const int64_t p = (h + conv.padding[0] + conv.padding[2] - conv.dilation[0] * (r - 1) - 1) /
                        conv.stride[0] + 1;
  const int64_t q = (w + conv.padding[1] + conv.padding[3] - conv.dilation[1] * (s - 1) - 1) /
                        conv.stride[1] + 1;
  if (t.grad->size(0) != n || t.grad->size(3) != k || t.grad->size(1) != p ||
      t.grad->size(2) != q || t.weight->size(3) * conv.groups != c || k % conv.groups != 0) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": shapes that do not fit each other: data N=" << n
                              << " H=" << h << " W=" << w << " C=" << c << ", weight K=" << k
                              << " R=" << r << " S=" << s << " C=" << t.weight->size(3)
                              << ", gradient N=" << t.grad->size(0) << " P=" << t.grad->size(1)
                              << " Q=" << t.grad->size(2) << " K=" << t.grad->size(3)
                              << ", expected P=" << p << " Q=" << q << ", groups=" << conv.groups;
  }
  const TensorView* result = fprop ? t.grad : wgrad ? t.weight : t.data;
  const Element element = fprop ? conv.grad : conv.data;
  if (t.bias != nullptr) {
    expect(conv, "bias", *t.bias, element, at[2], *t.data);
    if (t.bias->numel() != result->size(3)) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": the bias has " << t.bias->numel()
                                << " elements, the result " << result->size(3) << " channels";
    }
  }
  if (t.mask != nullptr) {
    expect(conv, "mask or residual", *t.mask, element, at[2], *t.data);
    for (int i = 0; i < 4; ++i) {
      if (t.mask->ndim() != 4 || t.mask->size(i) != result->size(i)) {
        TVM_FFI_THROW(ValueError) << conv.problem << ": the shape of the mask or residual is not the result's";
      }
    }
  }
  // No size is larger than its tensor's pixels or channels, which fit, and padding is less than the kernel's reach.
  auto small = [](int64_t value) { return static_cast<int>(value); };
  return {small(n), small(h), small(w), small(c / conv.groups), small(k / conv.groups), small(r),
          small(s), small(p), small(q), small(c), small(k),
          {small(conv.padding[0]), small(conv.padding[1])},
          {small(conv.stride[0]), small(conv.stride[1])},
          {small(conv.dilation[0]), small(conv.dilation[1])},
          variant.slices, nullptr, nullptr, nullptr, nullptr};
}

// What a kernel's object returns, in words.
inline void finish(const Variant& variant, int status) {
  if (status == 0) return;
  if (status < 0) check(static_cast<cudaError_t>(-status), std::string("launching ") + variant.name);
  static const char* const kWords[] = {  // of cutlass::Status, in its order
      "", "misaligned operand", "invalid dtype", "invalid layout", "invalid problem",
      "not supported", "no workspace", "internal error", "another architecture",
      "insufficient driver", "no memory", "invalid"};
  const int known = static_cast<int>(sizeof(kWords) / sizeof(kWords[0]));
  throw Failure{std::string(variant.name) + ": CUTLASS refuses the problem: " +
                (status < known ? kWords[status] : "unknown status")};
}

inline const void* further(const void* from, int64_t bytes) {
  return from == nullptr ? nullptr : static_cast<const char*>(from) + bytes;
}

// A kernel for each group: to CUTLASS a group is a convolution of some channels of a pixel.  `parts`
// are the slices of the sums, for one group after another.
inline void enqueue(const Conv& conv, const Variant& variant, const RelayWgradCall& whole,
                    const TensorView& result, void* parts, cudaStream_t stream) {
  const bool fprop = conv.kind == Kind::kFprop, wgrad = conv.kind == Kind::kWgrad;
  const int64_t weights = int64_t{whole.k} * whole.r * whole.s * whole.c;  // of a group
  for (int group = 0; group < conv.groups; ++group) {
    const int64_t data = int64_t{group} * whole.c * bytes_of(conv.data);
    const int64_t weight = group * weights * bytes_of(conv.weight);
    const int64_t grad = int64_t{group} * whole.k * bytes_of(conv.grad);
    const int64_t written = fprop ? grad : wgrad ? weight : data;
    RelayWgradCall call = whole;
    call.first = further(whole.first, fprop ? data : grad);
    call.second = further(whole.second, wgrad ? data : weight);
    call.source = further(whole.source, written);
    char* const out = pointer_of(&result) + written;
    call.result = out;
    if (parts == nullptr) {
      finish(variant, variant.kernel(call, stream));
      continue;
    }
    float* const sums = static_cast<float*>(parts) + group * weights * call.slices;
    call.result = sums;
    finish(variant, variant.kernel(call, stream));
    finish(variant, relay_wgrad_cutlass_slices(sums, out, static_cast<int>(conv.weight), weights,
                                               call.slices, stream));
  }
}

// The newest that the device can run.
inline const Variant& variant_for(const Conv& conv, int device) {
  int arch = 0;
  try {
    arch = State::get().arch(device);
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what << "\nproblem: " << conv.problem;
  }
  std::string built;
  for (const Variant& one : conv.variants) {
    if (one.kernel == nullptr) break;
    if (one.alone ? arch == one.arch : arch >= one.arch) return one;
    built += std::string(built.empty() ? "" : ", ") + one.name + " for sm_" + std::to_string(one.arch) +
             (one.alone ? " alone" : "");
  }
  TVM_FFI_THROW(RuntimeError) << built << ", and this GPU is sm_" << arch << "; partition with arch="
                              << arch << "\nproblem: " << conv.problem;
  TVM_FFI_UNREACHABLE();
}

inline void run(const Conv& conv, const Operands& t) {
  // Before a device is asked for: what is no tensor of one is refused with its name.
  expect(conv, "data", *t.data, conv.data, 1, *t.data);
  const int device = t.data->device().device_id;
  const Variant& variant = variant_for(conv, device);
  RelayWgradCall call = sizes_of(conv, variant, t);
  const bool dgrad = conv.kind == Kind::kDgrad, wgrad = conv.kind == Kind::kWgrad;
  const TensorView& result = wgrad ? *t.weight : dgrad ? *t.data : *t.grad;
  try {
    OnDevice on(device);
    cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
    if (t.data->numel() == 0 || t.grad->numel() == 0) {
      // An empty batch: a weight gradient is an empty sum, the others have no elements.
      const size_t bytes = static_cast<size_t>(result.numel()) * (result.dtype().bits / 8);
      if (bytes > 0) check(cudaMemsetAsync(pointer_of(&result), 0, bytes, stream), "cudaMemsetAsync");
      return;
    }
    call.first = pointer_of(dgrad || wgrad ? t.grad : t.data);
    call.second = pointer_of(wgrad ? t.data : t.weight);
    call.source = pointer_of(t.bias != nullptr ? t.bias : t.mask);
    const bool direct = !wgrad || (call.slices == 1 && conv.weight == Element::kFloat);
    const int64_t bytes = direct ? 0 : 4 * result.numel() * call.slices;
    State::get().note(conv, variant, bytes);
    if (direct) {
      enqueue(conv, variant, call, result, nullptr, stream);
      return;
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is captured");
    if (capture != cudaStreamCaptureStatusNone) {
      // The graph owns its memory: it may be replayed beside anything else on any stream.
      void* parts = nullptr;
      check(cudaMallocAsync(&parts, static_cast<size_t>(bytes), stream),
            "allocating a workspace in a captured graph");
      enqueue(conv, variant, call, result, parts, stream);
      check(cudaFreeAsync(parts, stream), "freeing a workspace in a captured graph");
      return;
    }
    Workspace& space = State::get().workspace(device, stream);
    std::lock_guard<std::mutex> lock(space.enqueuing);
    void* parts = space.at_least(bytes, bytes);
    if (poisoning()) {
      check(cudaMemsetAsync(parts, 0xff, static_cast<size_t>(bytes), stream),
            "poisoning the workspace");
    }
    enqueue(conv, variant, call, result, parts, stream);
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what << "\nproblem: " << conv.problem;
  }
}

// One line for each convolution called so far: problem, kernel and slices, workspace.
inline tvm::ffi::String plans() {
  std::lock_guard<std::mutex> lock(State::get().mutex);
  std::string out;
  for (const auto& one : State::get().called) {
    const auto& [conv, variant] = one.first;
    out += std::string(conv->problem) + "\t" + variant->name +
           " slices=" + std::to_string(variant->slices) + "\t" +
           std::to_string(one.second.first) + "\t0\n";
  }
  return tvm::ffi::String(out);
}

}  // namespace
