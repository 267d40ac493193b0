// ---- what is added to rows of scores ------------------------------------------------------------------

namespace {

// What is added in a column to a row that begins at these places.
template <typename Call>
__device__ inline float sum_at(const Call& z, const int64_t (&begin)[kMasks], int64_t column) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMasks; ++i) {
    if (i >= z.masks) continue;
    const int64_t place = begin[i] + column;
    const void* const from = z.added[i].at;
    sum += z.added[i].kind == 0   ? wide(static_cast<const __half*>(from)[place])
           : z.added[i].kind == 1 ? wide(static_cast<const __nv_bfloat16*>(from)[place])
                                  : static_cast<const float*>(from)[place];
  }
  return sum;
}

// Where a row has what is added to its scores.
template <typename Call>
struct Masks {
  const Call& z;
  int64_t begin[kMasks];

  __device__ Masks(const Call& call, int64_t row) : z(call) {
#pragma unroll
    for (int i = 0; i < kMasks; ++i) {
      begin[i] = 0;
      if (i >= z.masks) continue;
#pragma unroll
      for (int k = 0; k < kAxes; ++k) {
        if (k >= z.added[i].steps) continue;
        const RelayWgradStep& step = z.added[i].step[k];
        // In 32 bits, which `check` leaves: a division of 64 bits is a hundred instructions.
        const uint32_t digit = static_cast<uint32_t>(row) / static_cast<uint32_t>(step.divisor);
        const uint32_t count = static_cast<uint32_t>(step.count);
        begin[i] += int64_t{count == 0 ? digit : digit % count} * step.stride;
      }
    }
  }

  __device__ float at(int64_t column) const { return sum_at(z, begin, column); }
};

}  // namespace
