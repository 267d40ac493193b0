// ---- a convolution's operands: what every library's host checks of them ---------------------------------
//
// `Conv` is a library's own: what is known of a convolution when its code is generated.

namespace {

using tvm::ffi::TensorView;

enum class Kind { kFprop, kDgrad, kWgrad };

struct Operands {
  const TensorView *data, *weight, *grad;  // one of them is the result
  const TensorView *bias, *mask;           // a mask or a residual, of the result's shape
};

inline const TensorView& result_of(Kind kind, const Operands& t) {
  return kind == Kind::kFprop ? *t.grad : kind == Kind::kDgrad ? *t.data : *t.weight;
}

// What a kernel reads first and second, in the order of the kind.
inline char* first_of(Kind kind, const Operands& t) {
  return pointer_of(kind == Kind::kFprop ? t.data : t.grad);
}
inline char* second_of(Kind kind, const Operands& t) {
  return pointer_of(kind == Kind::kWgrad ? t.data : t.weight);
}

// All three have so many axes; `expect(name, tensor)` says more of each.
template <typename Conv>
void expect_rank(const Conv& conv, const Operands& t, int rank) {
  if (t.data->ndim() != rank || t.weight->ndim() != rank || t.grad->ndim() != rank) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": a tensor does not have " << rank << " dimensions";
  }
}

// Bias, mask and residual fit the result, whose channels are its axis `channels`.
template <typename Conv, typename Expect>
void expect_followers(const Conv& conv, const Operands& t, int channels, Expect expect) {
  const TensorView& result = result_of(conv.kind, t);
  if (t.bias != nullptr) {
    expect("bias", *t.bias);
    if (t.bias->numel() != result.size(channels)) {
      TVM_FFI_THROW(ValueError) << conv.problem << ": the bias has " << t.bias->numel()
                                << " elements, the result " << result.size(channels) << " channels";
    }
  }
  if (t.mask != nullptr) {
    expect("mask or residual", *t.mask);
    bool same = t.mask->ndim() == result.ndim();
    for (int i = 0; same && i < result.ndim(); ++i) same = t.mask->size(i) == result.size(i);
    if (!same) {
      TVM_FFI_THROW(ValueError) << conv.problem
                                << ": the shape of the mask or residual is not the result's";
    }
  }
}

// How many positions a kernel has along an axis of the image, padded before and after.
inline int64_t positions(int64_t pixels, int64_t before, int64_t after, int64_t taps, int64_t stride,
                         int64_t dilation) {
  return (pixels + before + after - dilation * (taps - 1) - 1) / stride + 1;
}

// The sizes of a convolution of images, in the letters of the forward one.
struct ImageSizes {
  int64_t n, h, w, c, k, r, s, p, q;
};

// Once the shapes fit each other; every tensor has four axes and `depth` more, before an image's rows.
template <typename Conv>
ImageSizes image_sizes(const Conv& conv, const Operands& t, bool nchw, int depth = 0) {
  const int channels = nchw ? 1 : 3 + depth, rows = (nchw ? 2 : 1) + depth, columns = rows + 1;
  const int64_t *before = conv.padding + depth, *after = before + 2 + depth;
  const int64_t *stride = conv.stride + depth, *dilation = conv.dilation + depth;
  const ImageSizes z = {t.data->size(0),      t.data->size(rows),    t.data->size(columns),
                        t.data->size(channels), t.weight->size(0),   t.weight->size(rows),
                        t.weight->size(columns), t.grad->size(rows), t.grad->size(columns)};
  const int64_t p = positions(z.h, before[0], after[0], z.r, stride[0], dilation[0]);
  const int64_t q = positions(z.w, before[1], after[1], z.s, stride[1], dilation[1]);
  if (t.grad->size(0) != z.n || t.grad->size(channels) != z.k || z.p != p || z.q != q ||
      t.weight->size(channels) * conv.groups != z.c || z.k % conv.groups != 0) {
    TVM_FFI_THROW(ValueError) << conv.problem << ": shapes that do not fit each other: data N=" << z.n
                              << " H=" << z.h << " W=" << z.w << " C=" << z.c << ", weight K=" << z.k
                              << " R=" << z.r << " S=" << z.s << " C=" << t.weight->size(channels)
                              << ", gradient N=" << t.grad->size(0) << " P=" << z.p << " Q=" << z.q
                              << " K=" << t.grad->size(channels) << ", expected P=" << p << " Q=" << q
                              << ", groups=" << conv.groups;
  }
  return z;
}

// Whether there is nothing to compute: then the result is made.
inline bool is_done(Kind kind, const Operands& t, cudaStream_t stream) {
  if (t.data->numel() != 0 && t.grad->numel() != 0) return false;
  // An empty batch: a weight gradient is an empty sum, the others have no elements.
  const TensorView& result = result_of(kind, t);
  const size_t bytes = static_cast<size_t>(result.numel()) * (result.dtype().bits / 8);
  if (bytes > 0) check(cudaMemsetAsync(pointer_of(&result), 0, bytes, stream), "cudaMemsetAsync");
  return true;
}

}  // namespace
