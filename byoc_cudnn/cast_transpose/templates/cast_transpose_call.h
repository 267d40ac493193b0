// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// One tensor: (blocks, rows, columns) becomes (blocks, columns, rows).  Every `from` elements along
// one of these become `to`: zeros behind them, or those at their end left out.
struct RelayWgradFill {
  int64_t from, to;
};

struct RelayWgradCastTranspose {
  const void* source;
  void* result;
  int64_t sizes[3];  // of the source
  RelayWgradFill fills[3];

  int64_t after(int i) const { return sizes[i] / fills[i].from * fills[i].to; }
  int64_t count() const { return after(0) * after(1) * after(2); }
};

// Many of them; `scale` is null where nothing is scaled.
struct RelayWgradCastTransposesCall {
  const RelayWgradCastTranspose* tensors;
  int64_t count;
  const float* scale;
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradCastTransposesKernel = int(const RelayWgradCastTransposesCall&, cudaStream_t);
