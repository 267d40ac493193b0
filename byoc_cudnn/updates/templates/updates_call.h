// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// Elements of one tensor that a block takes.
constexpr int64_t kRelayWgradTile = 4096;

// One tensor.  A statistic becomes its gradient, which is its new value.
struct RelayWgradUpdate {
  void* value;
  const void* gradient;
  void *first, *second;  // state
  int64_t count;
  bool statistic, decays;
};

struct RelayWgradNumbers {
  double weight_decay, momentum, beta1, beta2, epsilon, decoupled, clip, rest1, rest2;
};

// Many of them.  A count has values alone, and writes how many of each block's are not finite to
// `partial`, and all to `found`.
struct RelayWgradUpdatesCall {
  const RelayWgradUpdate* tensors;
  int64_t count;
  RelayWgradNumbers numbers;
  const bool *updates, *runs;
  const void* rates;  // the learning rate, what gradients are multiplied by
  const int64_t* steps;
  int64_t* new_steps;
  const void *product1, *product2;
  void *new_product1, *new_product2;
  int32_t* partial;
  double* found;
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradUpdatesKernel = int(const RelayWgradUpdatesCall&, cudaStream_t);
