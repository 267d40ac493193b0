// ---- what is added to rows: host's code and kernels agree on it --------------------------------------------

#include <cstdint>

constexpr int kMasks = 2, kAxes = 3;

// One axis of a tensor's rows: row r is at r / divisor % count * stride; a count of 0 is however many.
struct RelayWgradStep {
  int64_t divisor, count, stride;
};

// A tensor that is added to the scores.
struct RelayWgradAdded {
  const void* at;
  int kind;  // 0: float16, 1: bfloat16, 2: float32
  int steps;
  RelayWgradStep step[kAxes];
};
