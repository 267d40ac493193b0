// ---- what follows a convolution's sums, in float32 ---------------------------------------------------------

namespace {

template <bool kBias, bool kResidual, bool kRelu, bool kMask, bool kStrictMask>
struct After {
  static constexpr bool kPerChannel = kBias;
  static constexpr bool kWhole = kResidual || kMask || kStrictMask;
  static constexpr bool kReads = kPerChannel || kWhole;

  // `operand`: of the channel, or at the result's place; NaN passes ReLU and masks.
  static __device__ __forceinline__ float of(float value, float operand) {
    if constexpr (kBias || kResidual) value += operand;
    if constexpr (kRelu) value = value < 0.f ? 0.f : value;
    if constexpr (kMask) value = operand < 0.f ? 0.f : value;
    if constexpr (kStrictMask) value = operand <= 0.f ? 0.f : value;
    return value;
  }
};

}  // namespace
