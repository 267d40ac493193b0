// ---- what host code and the kernels' objects agree on ------------------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// A call.  Channels are all of a tensor's, not of a group.  `source` is the epilogue's operand: a bias,
// a residual or what a mask compares.  An image has one plane, and one tap in depth.
struct RelayWgradDirectCall {
  int n, d, h, w, c, k, t, r, s, z, p, q, groups;
  int front, top, left, stride[2], dilation[2];
  bool nchw;  // else channels come last, in the weight too
  const void *first, *second, *source;
  void* result;
  void* workspace;
  int64_t* wanted;  // where not null: the workspace's bytes are written there, and nothing runs
};

// 0, or the negative of a cudaError_t.
using RelayWgradDirectKernel = int(const RelayWgradDirectCall&, cudaStream_t);
