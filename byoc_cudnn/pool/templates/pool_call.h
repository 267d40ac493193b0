// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// One call: N images of H × W pixels of C channels, P × Q windows, the first of which begins `top` and
// `left` of the image.
struct RelayWgradPoolCall {
  int64_t n, h, w, c, p, q;
  int top, left;
  const void *x, *dy;  // x is null where the index tells
  void* out;           // y or dx
  void* index;         // a byte for each of y's elements: the tap r * S + s that it is; or null
  int64_t x_stride;    // from a pixel of x to the next: C, or more where x is channels of another tensor
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradPoolKernel = int(const RelayWgradPoolCall&, cudaStream_t);
