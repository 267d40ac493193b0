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
  int dims;             // of an image: 2, or 3 where it has a depth
  // Depth first where there is one; padding: before each axis, then after each.
  int64_t stride[3], padding[6], dilation[3];
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

struct DepthSizes {
  int64_t n, d, t, z;
};

// Of a volume with channels last, once they fit each other; of an image 1.
inline DepthSizes depth_sizes(const Conv& conv, const Operands& t, int64_t n) {
  if (conv.dims == 2) return {n, 1, 1, 1};
  const DepthSizes found = {n, t.data->size(1), t.weight->size(1), t.grad->size(1)};
  const int64_t z = positions(found.d, conv.padding[0], conv.padding[3], found.t, conv.stride[0],
                              conv.dilation[0]);
  if (found.z != z) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": shapes that do not fit each other: data D="
                              << found.d << ", weight T=" << found.t << ", gradient Z=" << found.z
                              << ", expected Z=" << z;
  }
  return found;
}

// The call of a kernel, once the shapes fit each other; pointers are not in it yet.
inline RelayWgradDirectCall sizes_of(const Conv& conv, const Operands& t) {
  expect(conv, "data", *t.data, conv.data, *t.data);
  expect(conv, "weight", *t.weight, conv.weight, *t.data);
  expect(conv, "gradient", *t.grad, conv.grad, *t.data);
  const int depth = conv.dims - 2;
  expect_rank(conv, t, conv.dims + 2);
  const auto [images, h, w, c, k, r, s, p, q] = image_sizes(conv, t, conv.nchw, depth);
  auto [n, d, taps, z] = depth_sizes(conv, t, images);
  // Where no tap leaves its plane, planes are images.
  if (taps == 1 && z == d && conv.stride[0] == 1 && depth) n *= d, d = z = 1;
  for (const int64_t size : {n, d * h * w, c, k, taps * r * s, z * p * q}) {
    if (size >= int64_t{1} << 31) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": " << size << " images, channels or pixels of"
                                << " one image; fewer than 2**31 are counted";
    }
  }
  const Element element = conv.kind == Kind::kFprop ? conv.grad : conv.data;
  expect_followers(conv, t, conv.nchw ? 1 : 3 + depth, [&](const char* name, const TensorView& one) {
    expect(conv, name, one, element, *t.data);
  });
  auto small = [](int64_t value) { return static_cast<int>(value); };
  return {small(n), small(d), small(h), small(w), small(c), small(k), small(taps), small(r), small(s),
          small(z), small(p), small(q), conv.groups, depth ? small(conv.padding[0]) : 0,
          small(conv.padding[depth]), small(conv.padding[depth + 1]),
          {small(conv.stride[depth]), small(conv.stride[depth + 1])},
          {small(conv.dilation[depth]), small(conv.dilation[depth + 1])},
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
