// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

constexpr int kOuter = 3;

// Where a tensor's matrices are: row r of matrix (i, j, k) at i, j, k and r times their steps, in elements.
struct RelayWgradAttentionPlace {
  void* at;
  int64_t step[kOuter], row;
};

struct RelayWgradAttentionCall {
  RelayWgradAttentionPlace q, k, v, out, dout, dq, dk, dv;
  float* logs;   // of each of q's rows the logarithm, of base 2, of the sum that softmax divides by
  float* inner;  // backward: of each the product of dout and out
  int64_t size[kOuter], rows, columns;  // matrices; rows of q and of k
  float scale;
  bool whole;   // whether accesses of 16 bytes fit
  float* wide;  // backward: the scores' gradient, or null
  int masks;
  RelayWgradAdded added[kMasks];  // to the scores
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradAttentionKernel = int(const RelayWgradAttentionCall&, cudaStream_t);
