// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// One call: N images of H × W pixels of C channels, P × Q pixels of K channels.  `first` and `second`
// are the operands by the order of the operator: data, weight; grad, weight; grad, data.
struct RelayWgradFewCall {
  int64_t n, h, w, c, k, p, q;
  const void *first, *second;
  void *out, *workspace;
  int64_t workspace_bytes;
};
