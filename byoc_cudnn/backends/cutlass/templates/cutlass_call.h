// ---- calls ----------------------------------------------------------------------------------------------
//
// What comes from outside is checked here: types, devices, shapes, alignment.

namespace {

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
  expect_rank(conv, t, 4);
  expect_small(conv, variant, "data", *t.data, conv.data);
  expect_small(conv, variant, "weight", *t.weight, wgrad ? Element::kFloat : conv.weight);
  expect_small(conv, variant, "gradient", *t.grad, conv.grad);
  const auto [n, h, w, c, k, r, s, p, q] = image_sizes(conv, t, false);
  const Element element = fprop ? conv.grad : conv.data;
  expect_followers(conv, t, 3, [&](const char* name, const TensorView& one) {
    expect(conv, name, one, element, at[2], *t.data);
  });
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
  launched(status, variant.name);
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
    arch = 10 * attribute_of(device, cudaDevAttrComputeCapabilityMajor) +
           attribute_of(device, cudaDevAttrComputeCapabilityMinor);
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
  const TensorView& result = result_of(conv.kind, t);
  on_stream(conv.problem, device, [&](cudaStream_t stream) {
    if (is_done(conv.kind, t, stream)) return;
    call.first = first_of(conv.kind, t);
    call.second = second_of(conv.kind, t);
    call.source = pointer_of(t.bias != nullptr ? t.bias : t.mask);
    const bool wgrad = conv.kind == Kind::kWgrad;
    const bool direct = !wgrad || (call.slices == 1 && conv.weight == Element::kFloat);
    const int64_t bytes = direct ? 0 : 4 * result.numel() * call.slices;
    Called::get().note(conv.problem, variant.name, bytes, variant.slices);
    with_workspace(device, stream, bytes, bytes > 0 && is_captured(stream), [&](void* parts) {
      enqueue(conv, variant, call, result, parts, stream);
    });
  });
}

// One line for each convolution called so far: problem, kernel and slices, workspace.
inline tvm::ffi::String plans() { return tvm::ffi::String(Called::get().lines()); }

}  // namespace
