// ---- calls of poolings ----------------------------------------------------------------------------------

namespace {

// What is known of a call when its code is generated; sizes come with the tensors.
struct Pool {
  const char* words;
  RelayWgradPoolKernel* kernel;
  const char* name;  // the kernel's
  Element element;
  int taps[2], strides[2], padding[4];  // top, left, bottom, right
  bool backward, index;
  int64_t slice[2];  // of x among another tensor's channels: the first, and how many; or no channels
};

__attribute__((noinline)) int call(const Pool& pool, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  // x, y; or dy, x, dx; with an index x, y, index; or dy, index, dx.
  const size_t expected = 2 + (pool.backward || pool.index);
  const std::vector<TensorView> views = views_of(pool.words, args, count, expected);
  const TensorView &first = views[0], &second = views[1], &last = views[static_cast<size_t>(count - 1)];
  // Of the image's size: x or dx, which are one where the index stands for x.
  const TensorView& x = !pool.backward ? first : pool.index ? last : second;
  const TensorView &y = pool.backward ? first : second, &out = pool.backward ? last : second;
  const TensorView* index = !pool.index ? nullptr : pool.backward ? &second : &last;
  const std::pair<const char*, const TensorView*> named[] = {
      {pool.backward && pool.index ? "dx" : "x", &x}, {pool.backward ? "dy" : "y", &y},
      {pool.backward ? "dx" : "y", &out}};
  for (const auto& [name, tensor] : named) {
    expect_dtype(pool.words, name, *tensor, pool.element);
    expect_on_device(pool.words, name, *tensor, x);
    if (tensor->ndim() != 4) {
      TVM_FFI_THROW(ValueError) << pool.words << ": " << name << " must have 4 axes, got "
                                << tensor->ndim();
    }
  }
  const int64_t channels = y.size(3);
  const bool sliced = pool.slice[1] != 0;
  bool same = x.size(0) == y.size(0);
  if (sliced) {
    same = same && x.size(3) == pool.slice[1] && pool.slice[0] + channels <= pool.slice[1];
  } else {
    same = same && x.size(3) == channels;
  }
  for (int i = 0; pool.backward && i < 4; ++i) {
    same = same && (i < 3 ? x.size(i) : channels) == out.size(i);
  }
  if (!same) TVM_FFI_THROW(ValueError) << pool.words << ": shapes that do not fit each other";
  if (index != nullptr) {
    expect_bytes(pool.words, "index", *index);
    expect_on_device(pool.words, "index", *index, x);
    bool fits = index->ndim() == 4;
    for (int i = 0; fits && i < 4; ++i) fits = index->size(i) == y.size(i);
    if (!fits) TVM_FFI_THROW(ValueError) << pool.words << ": index has another shape than the windows";
  }
  for (int axis = 0; axis < 2; ++axis) {
    if (x.size(1 + axis) * x.size(3) >= (int64_t{1} << 31) || x.size(1 + axis) > 4 * 65535) {
      TVM_FFI_THROW(ValueError) << pool.words << ": too many pixels along an axis, "
                                << x.size(1 + axis) << " of " << x.size(3) << " channels";
    }
    expect_windows(pool.words, x.size(1 + axis), y.size(1 + axis), pool.taps[axis],
                   pool.strides[axis], pool.padding[axis], pool.padding[2 + axis]);
  }
  if (out.numel() == 0) return 0;
  const int64_t offset = pool.slice[0] * (x.dtype().bits / 8);
  const RelayWgradPoolCall z{x.size(0), x.size(1), x.size(2), channels, y.size(1), y.size(2),
                             pool.padding[0], pool.padding[1],
                             pool.backward && pool.index ? nullptr : pointer_of(&x) + offset,
                             pool.backward ? pointer_of(&y) : nullptr, pointer_of(&out),
                             pointer_of(index), x.size(3)};
  launch(pool, z, x);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
