// ---- calls ----------------------------------------------------------------------------------------------
//
// What comes from outside is checked here: types, devices, shapes, alignment.  Everything in State
// lives until the process ends: at exit the driver may be gone first.

namespace {

using tvm::ffi::TensorView;

enum class Kind { kFprop, kDgrad, kWgrad };
enum class Element { kHalf, kBfloat16, kFloat };

// What is known of a convolution when its code is generated; sizes come with the tensors.
struct Conv {
  const char* problem;  // as the report prints it
  Kind kind;
  int groups;
  int64_t stride[2], padding[4], dilation[2];  // padding: top, left, bottom, right
  Element data, weight, grad;
  bool nchw, bias;
  int64_t alignment;  // bytes at which all tensors must lie
  const char* name;
  RelayWgradDirectKernel* kernel;
};

struct Operands {
  const TensorView *data, *weight, *grad;  // one of them is the result
  const TensorView *bias, *mask;  // a mask or a residual, of the result's shape
};

struct State {
  std::mutex mutex;
  std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Workspace>> workspaces;
  std::map<const Conv*, int64_t> called;  // bytes of workspace

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

  void note(const Conv& conv, int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    const bool is_new = called.find(&conv) == called.end();
    called[&conv] = bytes;
    if (is_new && debug_level() >= 4) {
      std::fprintf(stderr, "relay-wgrad: %s -> %s, workspace %lld\n", conv.problem, conv.name,
                   static_cast<long long>(bytes));
    }
  }
};

inline void expect(const Conv& conv, const char* name, const TensorView& t, Element element,
                   const TensorView& like) {
  expect_tensor(conv.problem, name, t, element == Element::kBfloat16 ? kDLBfloat : kDLFloat,
                element == Element::kFloat ? 32 : 16, like);
  if (reinterpret_cast<uintptr_t>(pointer_of(&t)) % static_cast<uintptr_t>(conv.alignment) != 0) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": " << name << " must lie at a multiple of "
                              << conv.alignment << " bytes";
  }
}

// The call of a kernel, once the shapes fit each other; pointers are not in it yet.
inline RelayWgradDirectCall sizes_of(const Conv& conv, const Operands& t) {
  expect(conv, "data", *t.data, conv.data, *t.data);
  expect(conv, "weight", *t.weight, conv.weight, *t.data);
  expect(conv, "gradient", *t.grad, conv.grad, *t.data);
  if (t.data->ndim() != 4 || t.weight->ndim() != 4 || t.grad->ndim() != 4) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": a tensor does not have 4 dimensions";
  }
  const int channels = conv.nchw ? 1 : 3, rows = conv.nchw ? 2 : 1, columns = rows + 1;
  const int64_t n = t.data->size(0), h = t.data->size(rows), w = t.data->size(columns);
  const int64_t c = t.data->size(channels), k = t.weight->size(0), r = t.weight->size(rows);
  const int64_t s = t.weight->size(columns);
  const int64_t p = (h + conv.padding[0] + conv.padding[2] - conv.dilation[0] * (r - 1) - 1) /
                        conv.stride[0] + 1;
  const int64_t q = (w + conv.padding[1] + conv.padding[3] - conv.dilation[1] * (s - 1) - 1) /
                        conv.stride[1] + 1;
  if (t.grad->size(0) != n || t.grad->size(channels) != k || t.grad->size(rows) != p ||
      t.grad->size(columns) != q || t.weight->size(channels) * conv.groups != c ||
      k % conv.groups != 0) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": shapes that do not fit each other: data N=" << n
                              << " H=" << h << " W=" << w << " C=" << c << ", weight K=" << k
                              << " R=" << r << " S=" << s << " C=" << t.weight->size(channels)
                              << ", gradient N=" << t.grad->size(0) << " P=" << t.grad->size(rows)
                              << " Q=" << t.grad->size(columns) << " K=" << t.grad->size(channels)
                              << ", expected P=" << p << " Q=" << q << ", groups=" << conv.groups;
  }
  for (const int64_t size : {n, h * w, c, k, r * s, p * q}) {
    if (size >= int64_t{1} << 31) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": " << size << " images, channels or pixels of"
                                << " one image; fewer than 2**31 are counted";
    }
  }
  const bool fprop = conv.kind == Kind::kFprop;
  const TensorView* result = fprop ? t.grad : conv.kind == Kind::kWgrad ? t.weight : t.data;
  const Element element = fprop ? conv.grad : conv.data;
  if (t.bias != nullptr) {
    expect(conv, "bias", *t.bias, element, *t.data);
    if (t.bias->numel() != result->size(channels)) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": the bias has " << t.bias->numel()
                                << " elements, the result " << result->size(channels) << " channels";
    }
  }
  if (t.mask != nullptr) {
    expect(conv, "mask or residual", *t.mask, element, *t.data);
    for (int i = 0; i < 4; ++i) {
      if (t.mask->ndim() != 4 || t.mask->size(i) != result->size(i)) {
        TVM_FFI_THROW(ValueError) << conv.problem
                                  << ": the shape of the mask or residual is not the result's";
      }
    }
  }
  auto small = [](int64_t value) { return static_cast<int>(value); };
  return {small(n), small(h), small(w), small(c), small(k), small(r), small(s), small(p), small(q),
          conv.groups, small(conv.padding[0]), small(conv.padding[1]),
          {small(conv.stride[0]), small(conv.stride[1])},
          {small(conv.dilation[0]), small(conv.dilation[1])},
          conv.nchw, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
}

inline void enqueue(const Conv& conv, const RelayWgradDirectCall& call, cudaStream_t stream) {
  const int status = conv.kernel(call, stream);
  if (status < 0) check(static_cast<cudaError_t>(-status), std::string("launching ") + conv.name);
}

inline void run(const Conv& conv, const Operands& t) {
  RelayWgradDirectCall call = sizes_of(conv, t);
  const bool dgrad = conv.kind == Kind::kDgrad, wgrad = conv.kind == Kind::kWgrad;
  const TensorView& result = wgrad ? *t.weight : dgrad ? *t.data : *t.grad;
  const int device = t.data->device().device_id;
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
    call.result = pointer_of(&result);
    int64_t bytes = 0;
    call.wanted = &bytes;
    enqueue(conv, call, stream);
    call.wanted = nullptr;
    State::get().note(conv, bytes);
    if (bytes == 0) {
      enqueue(conv, call, stream);
      return;
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is captured");
    if (capture != cudaStreamCaptureStatusNone) {
      // The graph owns its memory: it may be replayed beside anything else on any stream.
      check(cudaMallocAsync(&call.workspace, static_cast<size_t>(bytes), stream),
            "allocating a workspace in a captured graph");
      enqueue(conv, call, stream);
      check(cudaFreeAsync(call.workspace, stream), "freeing a workspace in a captured graph");
      return;
    }
    Workspace& space = State::get().workspace(device, stream);
    std::lock_guard<std::mutex> lock(space.enqueuing);
    call.workspace = space.at_least(bytes, bytes);
    if (poisoning()) {
      check(cudaMemsetAsync(call.workspace, 0xff, static_cast<size_t>(bytes), stream),
            "poisoning the workspace");
    }
    enqueue(conv, call, stream);
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what << "\nproblem: " << conv.problem;
  }
}

// One line for each convolution called so far: problem, kernel, workspace.
inline tvm::ffi::String plans() {
  std::lock_guard<std::mutex> lock(State::get().mutex);
  std::string out;
  for (const auto& [conv, bytes] : State::get().called) {
    out += std::string(conv->problem) + "\t" + conv->name + "\t" + std::to_string(bytes) + "\t0\n";
  }
  return tvm::ffi::String(out);
}

}  // namespace
