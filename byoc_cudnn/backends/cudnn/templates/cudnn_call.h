// ---- calls ----------------------------------------------------------------------------------------------
//
// What comes from outside is checked here: types, devices, shapes.

namespace {

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
  expect_rank(conv, t, rank);
  const int c = conv.channels_last ? rank - 1 : 1, first = conv.channels_last ? 1 : 2;
  Sizes z;
  z.n = t.data->size(0), z.c = t.data->size(c), z.k = t.weight->size(0);
  int64_t made[kMostDims] = {1, 1, 1};
  for (int i = 0; i < conv.dims; ++i) {
    z.image[i] = t.data->size(first + i);
    z.taps[i] = t.weight->size(first + i);
    z.made[i] = t.grad->size(first + i);
    made[i] = positions(z.image[i], conv.padding[i], conv.padding[i + conv.dims], z.taps[i],
                        conv.stride[i], conv.dilation[i]);
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
  const cudnnDataType_t dtype = conv.kind == Kind::kFprop ? conv.grad : conv.data;
  expect_followers(conv, t, c, [&](const char* name, const TensorView& one) {
    expect(conv, name, one, dtype, *t.data);
  });
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
  on_stream(conv.problem, device, [&](cudaStream_t stream) {
    if (is_done(conv.kind, t, stream)) return;
    const Pointers p = {first_of(conv.kind, t), second_of(conv.kind, t),
                        pointer_of(&result_of(conv.kind, t)), pointer_of(t.bias), pointer_of(t.mask)};
    Entry& entry = find_entry(conv, z, device);
    Worker worker = State::get().take(device);
    struct Lease {
      int device;
      Worker& worker;
      ~Lease() { State::get().give(device, worker); }
    } lease{device, worker};
    worker.use(stream);
    entry.run(worker, p, stream);
  });
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
