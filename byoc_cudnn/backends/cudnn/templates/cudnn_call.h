// ---- calls ----------------------------------------------------------------------------------------------
//
// What comes from outside is checked here: types, devices, shapes.

namespace {

struct Operands {
  const TensorView *data, *weight, *grad;  // one of them is the result
  const TensorView* bias;
  const TensorView* mask;
};

inline void expect(const Conv& conv, const char* name, const TensorView& t, cudnnDataType_t dtype,
                   const TensorView& like) {
  const bool is_float = dtype == CUDNN_DATA_FLOAT, is_half = dtype == CUDNN_DATA_HALF;
  expect_tensor(conv.problem, name, t, is_float || is_half ? kDLFloat : kDLBfloat,
                is_float ? 32 : 16, like);
}

// " H=5 W=6": sizes by the last letters of " DHW".
inline std::string named_sizes(const char* letters, const Conv& conv, const int64_t* sizes) {
  std::string out;
  for (int i = 0; i < conv.dims; ++i) {
    out += std::string(" ") + letters[1 + kMostDims - conv.dims + i] + "=" + std::to_string(sizes[i]);
  }
  return out;
}

// The sizes of a call, once they fit each other.
inline Sizes sizes_of(const Conv& conv, const Operands& t) {
  expect(conv, "data", *t.data, conv.data, *t.data);
  expect(conv, "weight", *t.weight, conv.weight, *t.data);
  expect(conv, "gradient", *t.grad, conv.grad, *t.data);
  const int rank = 2 + conv.dims;
  if (t.data->ndim() != rank || t.weight->ndim() != rank || t.grad->ndim() != rank) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": a tensor does not have " << rank << " dimensions";
  }
  const int c = conv.channels_last ? rank - 1 : 1, first = conv.channels_last ? 1 : 2;
  Sizes z;
  z.n = t.data->size(0), z.c = t.data->size(c), z.k = t.weight->size(0);
  int64_t made[kMostDims] = {1, 1, 1};
  for (int i = 0; i < conv.dims; ++i) {
    z.image[i] = t.data->size(first + i);
    z.taps[i] = t.weight->size(first + i);
    z.made[i] = t.grad->size(first + i);
    made[i] = (z.image[i] + conv.padding[i] + conv.padding[i + conv.dims] -
               conv.dilation[i] * (z.taps[i] - 1) - 1) / conv.stride[i] + 1;
  }
  if (t.grad->size(0) != z.n || t.grad->size(c) != z.k || !std::equal(made, made + kMostDims, z.made) ||
      t.weight->size(c) * conv.groups != z.c) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": shapes that do not fit each other: data N="
                              << z.n << " C=" << z.c << named_sizes(" DHW", conv, z.image)
                              << ", weight K=" << z.k << " C/groups=" << t.weight->size(c)
                              << named_sizes(" TRS", conv, z.taps) << ", gradient N="
                              << t.grad->size(0) << " K=" << t.grad->size(c)
                              << named_sizes(" ZPQ", conv, z.made) << ", expected"
                              << named_sizes(" ZPQ", conv, made);
  }
  const TensorView* result = conv.kind == Kind::kFprop   ? t.grad
                             : conv.kind == Kind::kDgrad ? t.data
                                                         : t.weight;
  const cudnnDataType_t dtype = conv.kind == Kind::kFprop ? conv.grad : conv.data;
  if (t.bias != nullptr) {
    expect(conv, "bias", *t.bias, dtype, *t.data);
    if (t.bias->numel() != result->size(c)) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": the bias has " << t.bias->numel()
                                << " elements, the result " << result->size(c) << " channels";
    }
  }
  if (t.mask != nullptr) {
    expect(conv, "mask", *t.mask, dtype, *t.data);
    for (int i = 0; i < rank; ++i) {
      if (t.mask->ndim() != rank || t.mask->size(i) != result->size(i)) {
        TVM_FFI_THROW(ValueError) << conv.problem << ": the mask's shape is not the result's";
      }
    }
  }
  uintptr_t bits = 16;
  for (const TensorView* one : {t.data, t.weight, t.grad, t.bias, t.mask}) {
    bits |= reinterpret_cast<uintptr_t>(pointer_of(one));
  }
  z.alignment = static_cast<int64_t>(bits & (~bits + 1));  // the lowest bit that any of them has
  return z;
}

inline Entry& find_entry(const Conv& conv, const Sizes& z, int device) {
  State& state = State::get();
  std::lock_guard<std::mutex> lock(state.mutex);
  auto& known = state.entries[{&conv, device}];
  for (const auto& entry : known) {
    if (entry->sizes() == z) return *entry;
  }
  known.push_back(std::make_unique<Entry>(conv, z, device));
  return *known.back();
}

inline void run(const Conv& conv, const Operands& t) {
  const Sizes z = sizes_of(conv, t);
  const int device = t.data->device().device_id;
  const bool dgrad = conv.kind == Kind::kDgrad, wgrad = conv.kind == Kind::kWgrad;
  const TensorView* result = wgrad ? t.weight : dgrad ? t.data : t.grad;
  try {
    OnDevice on(device);
    cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
    if (t.data->numel() == 0 || t.grad->numel() == 0) {
      // An empty batch: a weight gradient is an empty sum, the others have no elements.
      const size_t bytes = static_cast<size_t>(result->numel()) * (result->dtype().bits / 8);
      if (bytes > 0) check(cudaMemsetAsync(pointer_of(result), 0, bytes, stream), "cudaMemsetAsync");
      return;
    }
    const Pointers p = {pointer_of(dgrad || wgrad ? t.grad : t.data),
                        pointer_of(wgrad ? t.data : t.weight), pointer_of(result),
                        pointer_of(t.bias), pointer_of(t.mask)};
    Entry& entry = find_entry(conv, z, device);
    Worker worker = State::get().take(device);
    struct Lease {
      int device;
      Worker& worker;
      ~Lease() { State::get().give(device, worker); }
    } lease{device, worker};
    worker.use(stream);
    entry.run(worker, p, stream);
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what << "\nproblem: " << conv.problem;
  }
}

// One line for each problem met so far: key, engine and settings, workspace, milliseconds if timed.
inline tvm::ffi::String plans() {
  std::vector<Entry*> all;
  {
    std::lock_guard<std::mutex> lock(State::get().mutex);
    for (const auto& row : State::get().entries) {
      for (const auto& entry : row.second) all.push_back(entry.get());
    }
  }
  std::string out;
  try {
    for (Entry* entry : all) out += entry->line() + "\n";
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what;
  }
  return tvm::ffi::String(out);
}

}  // namespace
