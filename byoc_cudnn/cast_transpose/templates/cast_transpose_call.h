// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// One tensor: (blocks, rows, columns) becomes (blocks, columns, rows).
struct RelayWgradCastTranspose {
  const void* source;
  void* result;
  int64_t blocks, rows, columns;
};

// Many of them; `scale` is null where nothing is scaled.
struct RelayWgradCastTransposesCall {
  const RelayWgradCastTranspose* tensors;
  int64_t count;
  const float* scale;
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradCastTransposesKernel = int(const RelayWgradCastTransposesCall&, cudaStream_t);
