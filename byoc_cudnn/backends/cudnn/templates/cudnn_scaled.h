// ---- weight gradients of float32 by float16 operands, scaled by channel ----------------------------------
//
// Where tf32 is allowed: float16 has its 10 bits of fraction, and tensor cores take twice as many of them;
// cuDNN's weight gradients take a quarter of the time.  `scaled_half_device.h` says why nothing overflows.

namespace {

struct Pointers {
  void *first, *second, *result, *bias, *mask;
};

// Whether a convolution is the float16 one within another.
inline bool is_scaled(const Conv& conv) {
  return conv.scaled != nullptr && conv.data == CUDNN_DATA_HALF;
}

// The passes around a plan: operands to float16, the result from it.  They are in a call's workspace.
class ScaledHalf {
 public:
  ScaledHalf(const Conv& conv, const Sizes& z, int device) : kernel_(conv.scaled) {
    const int multiprocessors = attribute_of(device, cudaDevAttrMultiProcessorCount);
    const int64_t rows[2] = {z.n * product(z.image), z.n * product(z.made)};
    const int64_t channels[2] = {z.c, z.k};
    call_.blocks = static_cast<int>(
        std::max<int64_t>(1, std::min<int64_t>(4 * multiprocessors, std::max(rows[0], rows[1]) / 4)));
    for (int i = 0; i < 2; ++i) {
      RelayWgradScaledSide& side = call_.side[i];
      side.rows = rows[i];
      side.channels = static_cast<int>(channels[i]);
      side.bound = i == 0 ? kDataBound : kGradBound;
      at_[i].halves = take(rows[i] * channels[i] * 2);
      at_[i].squares = take(call_.blocks * channels[i] * static_cast<int64_t>(sizeof(double)));
      at_[i].exponents = take(channels[i] * static_cast<int64_t>(sizeof(int)));
    }
    call_.channels = static_cast<int>(z.c / conv.groups);
    call_.filters = static_cast<int>(z.k / conv.groups);
    call_.per_filter = static_cast<unsigned>(product(z.taps) * call_.channels);
    made_ = take(z.k * product(z.taps) * call_.channels * 2);
  }

  static bool takes(const Conv& conv, const Sizes& z, int device) {
    return conv.scaled != nullptr && conv.kind == Kind::kWgrad && conv.channels_last &&
           conv.data == CUDNN_DATA_FLOAT && conv.weight == CUDNN_DATA_FLOAT &&
           conv.grad == CUDNN_DATA_FLOAT && (conv.options & kAllowTf32) && z.alignment == 16 &&
           z.c % 8 == 0 && z.k % 8 == 0 && !refused() &&
           attribute_of(device, cudaDevAttrComputeCapabilityMajor) >= 8 &&
           (conv.workspace_limit < 0 ||
            conv.workspace_limit >= ScaledHalf(conv, z, device).bytes());
  }

  // NVIDIA's own switch for tf32.
  static bool refused() {
    static const bool off = [] {
      const char* text = std::getenv("NVIDIA_TF32_OVERRIDE");
      return text != nullptr && std::atoi(text) == 0;
    }();
    return off;
  }

  // The float16 problem within.  A user's limit is for the copies and the plan together.
  static Conv within(const Conv& conv, const Sizes& z, int device) {
    Conv half = conv;
    half.data = half.weight = half.grad = CUDNN_DATA_HALF;
    if (conv.workspace_limit >= 0) half.workspace_limit -= ScaledHalf(conv, z, device).bytes();
    return half;
  }

  // For tests: it is used wherever it may be.
  static bool always() {
    static const bool on = [] {
      const char* text = std::getenv("RELAY_WGRAD_SCALED_HALF");
      return text != nullptr && std::string(text) == "always";
    }();
    return on;
  }

  // Whether it is worth it where nothing is timed: the passes move 10 bytes of each operand's element.
  static bool expected(const Conv& conv, const Sizes& z) {
    if (always()) return true;
    constexpr double kBytes = 3.5e12, kTf32 = 170e12, kHalf = 550e12;  // a second, of an H200
    const double rows = static_cast<double>(z.n * product(z.made));
    const double elements = static_cast<double>(z.n * product(z.image)) * z.c + rows * z.k;
    const double flop = 2 * rows * z.k * (z.c / conv.groups) * product(z.taps);
    constexpr double kLaunches = 30e-6;
    return flop / kTf32 > flop / kHalf + 10 * elements / kBytes + kLaunches;
  }

  int64_t bytes() const { return bytes_; }

  // Makes the operands; gives what the plan takes in place of a call's pointers.
  Pointers begin(const Pointers& p, void* block, cudaStream_t stream) const {
    const RelayWgradScaledCall call = placed(p, block, false);
    launched(kernel_(call, stream), "scaled_half");
    return {call.side[1].to, call.side[0].to, at(block, made_), nullptr, nullptr};
  }

  void end(const Pointers& p, void* block, cudaStream_t stream) const {
    launched(kernel_(placed(p, block, true), stream), "scaled_half");
  }

 private:
  static constexpr int kDataBound = 7, kGradBound = 8;

  static void* at(void* block, int64_t offset) { return static_cast<char*>(block) + offset; }

  int64_t take(int64_t wanted) {
    const int64_t offset = bytes_;
    bytes_ += (wanted + 255) / 256 * 256;
    return offset;
  }

  RelayWgradScaledCall placed(const Pointers& p, void* block, bool restore) const {
    RelayWgradScaledCall call = call_;
    for (int i = 0; i < 2; ++i) {
      call.side[i].from = static_cast<const float*>(i == 0 ? p.second : p.first);
      call.side[i].to = at(block, at_[i].halves);
      call.side[i].squares = static_cast<double*>(at(block, at_[i].squares));
      call.side[i].exponent = static_cast<int*>(at(block, at_[i].exponents));
    }
    call.made = at(block, made_);
    call.result = static_cast<float*>(p.result);
    call.restore = restore;
    return call;
  }

  RelayWgradScaledKernel* kernel_;
  RelayWgradScaledCall call_ = {};
  struct {
    int64_t halves, squares, exponents;
  } at_[2] = {};
  int64_t made_ = 0, bytes_ = 0;
};

}  // namespace
