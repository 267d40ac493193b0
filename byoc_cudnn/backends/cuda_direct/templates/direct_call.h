// ---- calls ----------------------------------------------------------------------------------------------
//
// What comes from outside is checked here: types, devices, shapes, alignment.

namespace {

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
  expect_rank(conv, t, 4);
  const auto [n, h, w, c, k, r, s, p, q] = image_sizes(conv, t, conv.nchw);
  for (const int64_t size : {n, h * w, c, k, r * s, p * q}) {
    if (size >= int64_t{1} << 31) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": " << size << " images, channels or pixels of"
                                << " one image; fewer than 2**31 are counted";
    }
  }
  const Element element = conv.kind == Kind::kFprop ? conv.grad : conv.data;
  expect_followers(conv, t, conv.nchw ? 1 : 3, [&](const char* name, const TensorView& one) {
    expect(conv, name, one, element, *t.data);
  });
  auto small = [](int64_t value) { return static_cast<int>(value); };
  return {small(n), small(h), small(w), small(c), small(k), small(r), small(s), small(p), small(q),
          conv.groups, small(conv.padding[0]), small(conv.padding[1]),
          {small(conv.stride[0]), small(conv.stride[1])},
          {small(conv.dilation[0]), small(conv.dilation[1])},
          conv.nchw, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
}

inline void enqueue(const Conv& conv, const RelayWgradDirectCall& call, cudaStream_t stream) {
  launched(conv.kernel(call, stream), conv.name);
}

inline void run(const Conv& conv, const Operands& t) {
  RelayWgradDirectCall call = sizes_of(conv, t);
  const int device = t.data->device().device_id;
  on_stream(conv.problem, device, [&](cudaStream_t stream) {
    if (is_done(conv.kind, t, stream)) return;
    call.first = first_of(conv.kind, t);
    call.second = second_of(conv.kind, t);
    call.source = pointer_of(t.bias != nullptr ? t.bias : t.mask);
    call.result = pointer_of(&result_of(conv.kind, t));
    int64_t bytes = 0;
    call.wanted = &bytes;
    enqueue(conv, call, stream);
    call.wanted = nullptr;
    Called::get().note(conv.problem, conv.name, bytes);
    with_workspace(device, stream, bytes, bytes > 0 && is_captured(stream), [&](void* block) {
      call.workspace = block;
      enqueue(conv, call, stream);
    });
  });
}

// One line for each convolution called so far: problem, kernel, workspace.
inline tvm::ffi::String plans() { return tvm::ffi::String(Called::get().lines()); }

}  // namespace
