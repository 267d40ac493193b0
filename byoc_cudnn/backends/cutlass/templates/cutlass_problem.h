// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

// One call of a convolution, in the letters of the forward convolution; of one with groups, a group.
struct RelayWgradCall {
  int n, h, w, c, k, r, s, p, q;
  int all_c, all_k;                    // channels of a pixel in memory: more than c and k with groups
  int pad[2], stride[2], dilation[2];  // padding: top and left; P and Q say the rest
  int slices;                          // into which wgrad's sum is cut
  const void *first, *second;          // the operands, in the order of the kind
  const void* source;                  // a bias, a residual or a mask; null where there is none
  void* result;                        // for wgrad: `slices` sums in float32, one after another
};

// What an object exports.  0, or a cutlass::Status, or less than 0: a cudaError_t, negated.
using RelayWgradKernel = int(const RelayWgradCall&, cudaStream_t);
