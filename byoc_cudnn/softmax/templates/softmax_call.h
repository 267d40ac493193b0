// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// Pitches are elements from one row to the next.
struct RelayWgradSoftmaxCall {
  const void* source;   // scores, or the weights' gradient
  const void* weights;  // backward
  void* result;
  float* wide;  // backward: the gradient before the scale, or null
  int64_t rows, columns, source_pitch, weights_pitch, result_pitch;
  float scale;
  int masks;
  RelayWgradAdded added[kMasks];
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradSoftmaxKernel = int(const RelayWgradSoftmaxCall&, cudaStream_t);
