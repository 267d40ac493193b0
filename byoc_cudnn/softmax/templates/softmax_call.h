// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

constexpr int kMasks = 2, kSteps = 3;

// One axis of a tensor's rows: row r is at r / divisor % count * stride; a count of 0 is however many.
struct RelayWgradSoftmaxStep {
  int64_t divisor, count, stride;
};

// A tensor that is added to the scores.
struct RelayWgradSoftmaxAdded {
  const void* at;
  int kind;  // 0: float16, 1: bfloat16, 2: float32
  int steps;
  RelayWgradSoftmaxStep step[kSteps];
};

// Pitches are elements from one row to the next.
struct RelayWgradSoftmaxCall {
  const void* source;   // scores, or the weights' gradient
  const void* weights;  // backward
  void* result;
  float* wide;  // backward: the gradient before the scale, or null
  int64_t rows, columns, source_pitch, weights_pitch, result_pitch;
  float scale;
  int masks;
  RelayWgradSoftmaxAdded added[kMasks];
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradSoftmaxKernel = int(const RelayWgradSoftmaxCall&, cudaStream_t);
