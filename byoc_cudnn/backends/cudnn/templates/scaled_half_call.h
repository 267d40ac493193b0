// ---- operands in float16, scaled by channel: what host and kernels agree on ----------------------------
//
// A weight gradient's element is a sum of one channel's data times one channel's gradient.  So each
// channel may be multiplied by a power of two, and the results divided by both, without rounding.

#include <cuda_runtime_api.h>

#include <cstdint>

// An operand, channels last.
struct RelayWgradScaledSide {
  const float* from;
  void* to;         // float16, scaled
  double* squares;  // sums of them, `blocks` rows of channels
  int* exponent;    // of each channel's scale
  int64_t rows;
  int channels;
  int bound;  // a scaled channel's norm is less than 2^bound
};

struct RelayWgradScaledCall {
  RelayWgradScaledSide side[2];  // data, gradient
  int blocks;
  const void* made;  // float16: the gradient of the scaled operands
  float* result;
  unsigned per_filter;  // elements of the result
  int channels, filters;         // of a group
  bool restore;                  // `made` to `result`; else the operands are scaled
};

using RelayWgradScaledKernel = int(const RelayWgradScaledCall& call, cudaStream_t stream);
