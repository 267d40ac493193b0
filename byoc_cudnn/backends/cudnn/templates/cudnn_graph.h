// ---- a convolution as cuDNN's graph API wants it --------------------------------------------------

namespace {

enum Epilogue : unsigned { kBias = 1, kRelu = 2, kMask = 4, kStrictMask = 8, kResidual = 16 };
enum Option : unsigned { kAllowTf32 = 1, kDeterministic = 2, kBenchmark = 4 };

constexpr int kMostDims = 3;  // of an image: height and width, or depth and these

// What is known of a convolution when its code is generated; sizes come with the tensors.
struct Conv {
  const char* problem;  // as the report prints it
  Kind kind;
  bool channels_last;  // NHWC and OHWI, else NCHW and OIHW
  int dims;            // of an image: so many strides and dilations are used, twice as many paddings
  // padding: top, left, bottom, right, or front, top, left, back, bottom, right
  int64_t stride[kMostDims], padding[2 * kMostDims], dilation[kMostDims];
  int64_t groups;
  cudnnDataType_t data, weight, grad;
  unsigned epilogue, options;
  int64_t workspace_limit;  // bytes; less than 0: `workspace_limit()` decides
  RelayWgradScaledKernel* scaled;  // may compute it in float16 (`cudnn_scaled.h`); null: does not
};

// The sizes of one call, in the letters of the forward convolution; 1 beyond an image's dimensions.
struct Sizes {
  int64_t n, c, k;
  int64_t image[kMostDims] = {1, 1, 1}, taps[kMostDims] = {1, 1, 1}, made[kMostDims] = {1, 1, 1};
  int64_t alignment;  // bytes: of the least aligned tensor, 16 at most
  bool operator==(const Sizes& o) const {
    auto same = [](const int64_t* a, const int64_t* b) { return std::equal(a, a + kMostDims, b); };
    return n == o.n && c == o.c && k == o.k && same(image, o.image) && same(taps, o.taps) &&
           same(made, o.made) && alignment == o.alignment;
  }
};

inline int64_t product(const int64_t* sizes) { return sizes[0] * sizes[1] * sizes[2]; }

inline int64_t bytes_of(cudnnDataType_t dtype) { return dtype == CUDNN_DATA_FLOAT ? 4 : 2; }

// Where the user gave no limit: four times the three tensors, since engines that change layouts
// keep copies of them, and Winograd's transforms are that much larger; and some more for small ones.
inline int64_t workspace_limit(const Conv& conv, const Sizes& z) {
  if (conv.workspace_limit >= 0) return conv.workspace_limit;
  const int64_t tensors = z.n * z.c * product(z.image) * bytes_of(conv.data) +
                          z.k * (z.c / conv.groups) * product(z.taps) * bytes_of(conv.weight) +
                          z.n * z.k * product(z.made) * bytes_of(conv.grad);
  return 4 * tensors + (int64_t{256} << 20);
}

inline void check(cudnnStatus_t status, const std::string& doing) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[2048] = "";
  cudnnGetLastErrorString(detail, sizeof(detail));
  throw Failure{doing + ": " + cudnnGetErrorString(status) + (detail[0] ? " (" : "") + detail +
                (detail[0] ? ")" : "")};
}

class Descriptor {
 public:
  Descriptor(cudnnBackendDescriptorType_t type, std::string name) : name_(std::move(name)) {
    check(cudnnBackendCreateDescriptor(type, &handle_), "creating " + name_);
  }
  Descriptor(Descriptor&& other) noexcept : name_(std::move(other.name_)), handle_(other.handle_) {
    other.handle_ = nullptr;
  }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(name_, other.name_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Descriptor() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }

  cudnnBackendDescriptor_t get() const { return handle_; }

  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t key, cudnnBackendAttributeType_t type, int64_t count,
                  const T* values) {
    check(cudnnBackendSetAttribute(handle_, key, type, count, values),
          "attribute " + std::to_string(static_cast<int>(key)) + " of " + name_);
    return *this;
  }
  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t key, cudnnBackendAttributeType_t type,
                  const T& value) {
    return set(key, type, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t key, const Descriptor& value) {
    return set(key, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  Descriptor& finalize() {
    check(cudnnBackendFinalize(handle_), "finalizing " + name_);
    return *this;
  }

 private:
  std::string name_;
  cudnnBackendDescriptor_t handle_ = nullptr;
};

// Which pointer of the variant pack a tensor is.
enum Uid : int64_t { kNone = 0, kFirst, kSecond, kResult, kBiasIn, kMaskIn, kZero, kVirtual };

struct Tensor {
  int64_t dims[2 + kMostDims];  // N C H W, or K C/groups R S; with a depth it comes third
  int rank;
  cudnnDataType_t dtype;
};

inline Tensor tensor(const Conv& conv, int64_t first, int64_t second, const int64_t* others,
                     cudnnDataType_t dtype) {
  Tensor out = {{first, second}, 2 + conv.dims, dtype};
  std::copy(others, others + conv.dims, out.dims + 2);
  return out;
}
inline Tensor data_tensor(const Conv& conv, const Sizes& z) {
  return tensor(conv, z.n, z.c, z.image, conv.data);
}
inline Tensor weight_tensor(const Conv& conv, const Sizes& z) {
  return tensor(conv, z.k, z.c / conv.groups, z.taps, conv.weight);
}
inline Tensor grad_tensor(const Conv& conv, const Sizes& z) {
  return tensor(conv, z.n, z.k, z.made, conv.grad);
}

inline Descriptor describe(const Tensor& t, int64_t uid, bool channels_last, int64_t alignment,
                           bool is_virtual, const char* name) {
  int64_t strides[2 + kMostDims], step = channels_last ? t.dims[1] : 1;
  for (int i = t.rank - 1; i >= 2; --i) {
    strides[i] = step;
    step *= t.dims[i];
  }
  strides[1] = channels_last ? 1 : step;
  strides[0] = channels_last ? step : step * t.dims[1];
  Descriptor out(CUDNN_BACKEND_TENSOR_DESCRIPTOR, name);
  out.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, t.dtype)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, t.rank, t.dims)
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, t.rank, strides)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  return std::move(out.finalize());
}

// The operations of one call; the parts live as long as the graph.
class Graph {
 public:
  Graph(cudnnHandle_t handle, const Conv& conv, const Sizes& z)
      : conv_(conv), z_(z), graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph") {
    const Tensor result = conv.kind == Kind::kFprop   ? grad_tensor(conv, z)
                          : conv.kind == Kind::kDgrad ? data_tensor(conv, z)
                                                      : weight_tensor(conv, z);
    unsigned left = conv.epilogue;
    size_t from = convolution(result, left == 0);
    if (left & kBias) {
      const int64_t ones[kMostDims] = {1, 1, 1};
      const Tensor bias = tensor(conv, 1, result.dims[1], ones, result.dtype);
      const size_t b = add(describe(bias, kBiasIn, conv.channels_last, z.alignment, false, "bias"));
      left &= ~kBias;
      from = pointwise(CUDNN_POINTWISE_ADD, from, b, result, left == 0);
    }
    if (left & kResidual) {  // for `benchmarks.cudnn_epilogues`: no row of the table asks for it
      const size_t other = add(
          describe(result, kMaskIn, conv.channels_last, z.alignment, false, "the residual"));
      left &= ~kResidual;
      from = pointwise(CUDNN_POINTWISE_ADD, from, other, result, left == 0);
    }
    if (left & kRelu) {
      left &= ~kRelu;
      from = pointwise(CUDNN_POINTWISE_RELU_FWD, from, kAbsent, result, left == 0);
    }
    if (left & (kMask | kStrictMask)) {
      // where(x < 0, 0, dx): what the gradient of Relay's and upstream's relu is, at x = 0 too; or
      // where(x <= 0, 0, dx), PyTorch's.  Both pass dx where x is NaN.
      const size_t x = add(
          describe(result, kMaskIn, conv.channels_last, z.alignment, false, "the mask's operand"));
      const size_t zero = add(scalar_zero());
      Tensor truth = result;
      truth.dtype = CUDNN_DATA_BOOLEAN;
      const auto compare = left & kMask ? CUDNN_POINTWISE_CMP_LT : CUDNN_POINTWISE_CMP_LE;
      const size_t less = pointwise(compare, x, zero, truth, false);
      pointwise(CUDNN_POINTWISE_BINARY_SELECT, zero, from, result, true, less);
    }
    std::vector<cudnnBackendDescriptor_t> ops;
    for (const Descriptor& op : operations_) ops.push_back(op.get());
    graph_
        .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<int64_t>(ops.size()), ops.data())
        .set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle)
        .finalize();
  }

  const Descriptor& get() const { return graph_; }

 private:
  static constexpr size_t kAbsent = static_cast<size_t>(-1);

  size_t add(Descriptor tensor) {
    tensors_.push_back(std::move(tensor));
    return tensors_.size() - 1;
  }

  size_t output(const Tensor& t, bool last) {
    Tensor made = t;
    // What is between two operations is no tensor in memory: it keeps the sums' precision.
    if (!last && t.dtype != CUDNN_DATA_BOOLEAN) made.dtype = CUDNN_DATA_FLOAT;
    const int64_t uid = last ? static_cast<int64_t>(kResult) : kVirtual + next_++;
    return add(describe(made, uid, conv_.channels_last, z_.alignment, !last, "a result"));
  }

  Descriptor scalar_zero() const {
    const int64_t one[2 + kMostDims] = {1, 1, 1, 1, 1}, rank = 2 + conv_.dims;
    Descriptor out(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "zero");
    out.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, one)
        .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, one)
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, static_cast<int64_t>(kZero))
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, static_cast<int64_t>(4))
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, false)
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
    return std::move(out.finalize());
  }

  size_t convolution(const Tensor& result, bool last) {
    const int64_t dims = conv_.dims;
    Descriptor how(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "the convolution");
    how.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
        .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, dims)
        .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, dims, conv_.stride)
        .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, dims, conv_.padding)
        .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, dims, conv_.padding + dims)
        .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dims, conv_.dilation)
        .finalize();
    const bool wgrad = conv_.kind == Kind::kWgrad, dgrad = conv_.kind == Kind::kDgrad;
    // The first operand is the data of fprop and the gradient of the others; the second is the
    // data of wgrad and the weight of the others.
    auto made = [&](const Tensor& t, Uid uid, const char* name) {
      return add(describe(t, uid, conv_.channels_last, z_.alignment, false, name));
    };
    const size_t out = output(result, last);
    const size_t x = dgrad ? out : made(data_tensor(conv_, z_), wgrad ? kSecond : kFirst, "data");
    const size_t w = wgrad ? out : made(weight_tensor(conv_, z_), kSecond, "weight");
    const size_t y = wgrad || dgrad ? made(grad_tensor(conv_, z_), kFirst, "gradient") : out;
    struct Keys {
      cudnnBackendDescriptorType_t type;
      cudnnBackendAttributeName_t alpha, beta, conv, x, w, y;
    };
    static const Keys kKeys[3] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
    };
    const Keys& key = kKeys[static_cast<int>(conv_.kind)];
    Descriptor op(key.type, "the operation");
    op.set(key.alpha, CUDNN_TYPE_FLOAT, 1.0f)
        .set(key.beta, CUDNN_TYPE_FLOAT, 0.0f)
        .set(key.conv, how)
        .set(key.x, tensors_[x])
        .set(key.w, tensors_[w])
        .set(key.y, tensors_[y])
        .finalize();
    others_.push_back(std::move(how));
    operations_.push_back(std::move(op));
    return out;
  }

  // mode(a, b); where a condition is given: a where it holds, else b.
  size_t pointwise(cudnnPointwiseMode_t mode, size_t a, size_t b, const Tensor& result, bool last,
                   size_t condition = kAbsent) {
    Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "an epilogue's function");
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (mode == CUDNN_POINTWISE_RELU_FWD) {
      // Else a network whose parameters have become NaN would go on to report a loss.
      how.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION,
              CUDNN_PROPAGATE_NAN);
    }
    how.finalize();
    const size_t out = output(result, last);
    Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "an epilogue");
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[a])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[out]);
    if (b != kAbsent) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[b]);
    if (condition != kAbsent) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[condition]);
    op.finalize();
    others_.push_back(std::move(how));
    operations_.push_back(std::move(op));
    return out;
  }

  const Conv& conv_;
  const Sizes z_;
  int64_t next_ = 0;
  std::vector<Descriptor> tensors_, others_, operations_;
  Descriptor graph_;
};

}  // namespace
