// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// One weight: `filters` rows of (channels, taps), of which `made` and its gradient have (taps, channels).
struct RelayWgradStandardizedWeight {
  const float *weight, *gain;  // gain: null where there is none
  float* statistics;           // means, then rstd
  void* made;                  // backward: its gradient, which is read
  float *dweight, *dgain;      // backward
  int64_t filters, channels, taps;
  float factor;
};

// Many of them.
struct RelayWgradStandardizedCall {
  const RelayWgradStandardizedWeight* weights;
  int64_t count;
  float epsilon;
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradStandardizedKernel = int(const RelayWgradStandardizedCall&, cudaStream_t);
