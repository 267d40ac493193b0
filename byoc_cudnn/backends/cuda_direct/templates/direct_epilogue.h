// ---- what follows a convolution's sums, in float32 ---------------------------------------------------------

namespace {

template <bool kBias, bool kResidual, bool kRelu, bool kRelu6, bool kSilu, bool kMask, bool kStrictMask>
struct After {
  static constexpr bool kPerChannel = kBias;
  static constexpr bool kWhole = kResidual || kMask || kStrictMask;
  static constexpr bool kReads = kPerChannel || kWhole;

  // `operand`: of the channel, or at the result's place; NaN passes all of them.
  static __device__ __forceinline__ float of(float value, float operand) {
    if constexpr (kBias || kResidual) value += operand;
    if constexpr (kRelu || kRelu6) value = value < 0.f ? 0.f : value;
    if constexpr (kRelu6) value = value > 6.f ? 6.f : value;
    // Approximate functions: 2 ulp more, and a fraction of the time that a division in full takes.
    if constexpr (kSilu) value = __fdividef(value, 1.f + __expf(-value));
    if constexpr (kMask) value = operand < 0.f ? 0.f : value;
    if constexpr (kStrictMask) value = operand <= 0.f ? 0.f : value;
    return value;
  }
};

}  // namespace
