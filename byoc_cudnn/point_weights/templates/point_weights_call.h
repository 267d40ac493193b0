// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// One weight: dw[k, c] = sum over n of dy[n, k] x[n, c]; db[k] of dy, where it is not null.
struct RelayWgradPointWeight {
  const void *dy, *x;
  void* dw;
  float* db;
  int64_t n, k, c;
};

struct RelayWgradPointWeightsCall {
  const RelayWgradPointWeight* products;
  int64_t count;
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradPointWeightsKernel = int(const RelayWgradPointWeightsCall&, cudaStream_t);
