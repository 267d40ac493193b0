// ---- standardization of many weights in one launch ----------------------------------------------------
//
// A block has one filter of one weight, which it reads again from the first-level cache.  Loads are plain
// ones: those of read-only data may move above the wait for the kernel before.

namespace {

constexpr int kMost = 40;  // weights of a launch: their table is the kernel's parameter
constexpr int kRowThreads = 128;

struct Table {
  RelayWgradStandardizedWeight weights[kMost];
  uint32_t first[kMost + 1];  // of a weight's blocks
};

// The sum of all threads' values, in an order of its own; every thread gets it.
__device__ inline float over_block(float value) {
  __shared__ float sums[kRowThreads / 32];
  for (int step = 1; step < 32; step *= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kRowThreads / 32; ++warp) sum += sums[warp];
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    standardized(const __grid_constant__ Table table, float epsilon, int weights) {
  begin();
  const int which = item_of(table.first, weights);
  const RelayWgradStandardizedWeight& w = table.weights[which];
  const uint32_t filter = blockIdx.x - table.first[which];
  const uint32_t channels = static_cast<uint32_t>(w.channels), taps = static_cast<uint32_t>(w.taps);
  const uint32_t row = channels * taps;
  const float* const from = w.weight + int64_t{filter} * row;
  T* const to = static_cast<T*>(w.made) + int64_t{filter} * row;
  float sum = 0;
  for (uint32_t i = threadIdx.x; i < row; i += kRowThreads) sum += from[i];
  const float mean = over_block(sum) / float(row);
  sum = 0;
  for (uint32_t i = threadIdx.x; i < row; i += kRowThreads) {
    const float apart = from[i] - mean;
    sum += apart * apart;
  }
  const float rstd = 1.f / sqrtf(over_block(sum) / float(row) + epsilon);
  const float gain = w.gain == nullptr ? 1.f : w.gain[filter] * w.factor;
  for (uint32_t i = threadIdx.x; i < row; i += kRowThreads) {
    const uint32_t tap = i / channels, channel = i - tap * channels;
    to[i] = narrow<T>((from[channel * taps + tap] - mean) * rstd * gain);
  }
  if (threadIdx.x == 0) {
    w.statistics[filter] = mean;
    w.statistics[w.filters + filter] = rstd;
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    standardized_gradient(const __grid_constant__ Table table, float, int weights) {
  begin();
  const int which = item_of(table.first, weights);
  const RelayWgradStandardizedWeight& w = table.weights[which];
  const uint32_t filter = blockIdx.x - table.first[which];
  const uint32_t channels = static_cast<uint32_t>(w.channels), taps = static_cast<uint32_t>(w.taps);
  const uint32_t row = channels * taps;
  const float* const from = w.weight + int64_t{filter} * row;
  const T* const d = static_cast<const T*>(w.made) + int64_t{filter} * row;
  const float mean = w.statistics[filter], rstd = w.statistics[w.filters + filter];
  const float gain = w.gain == nullptr ? 1.f : w.gain[filter] * w.factor;
  // Of an element of the weight, in its order: where its gradient is.
  const auto place = [&](uint32_t i) {
    const uint32_t channel = i / taps;
    return (i - channel * taps) * channels + channel;
  };
  float plain = 0, weighted = 0;
  for (uint32_t i = threadIdx.x; i < row; i += kRowThreads) {
    const float g = wide(d[place(i)]);
    plain += g;
    weighted += g * ((from[i] - mean) * rstd);
  }
  plain = over_block(plain);
  weighted = over_block(weighted);
  const float level = plain / float(row), slope = weighted / float(row);
  float* const to = w.dweight + int64_t{filter} * row;
  for (uint32_t i = threadIdx.x; i < row; i += kRowThreads) {
    to[i] = gain * rstd * (wide(d[place(i)]) - level - (from[i] - mean) * rstd * slope);
  }
  if (threadIdx.x == 0 && w.dgain != nullptr) w.dgain[filter] = w.factor * weighted;
}

inline int in_launches(const RelayWgradStandardizedCall& call, cudaStream_t stream,
                       void (*kernel)(Table, float, int)) {
  for (int64_t start = 0; start < call.count; start += kMost) {
    Table table{};
    const int weights = static_cast<int>(call.count - start < kMost ? call.count - start : kMost);
    uint32_t blocks = 0;
    for (int i = 0; i < weights; ++i) {
      table.weights[i] = call.weights[start + i];
      table.first[i] = blocks;
      blocks += static_cast<uint32_t>(table.weights[i].filters);
    }
    table.first[weights] = blocks;
    const cudaError_t error =
        launch(kernel, dim3(blocks), kRowThreads, stream, table, call.epsilon, weights);
    if (error != cudaSuccess) return finished(error);
  }
  return 0;
}

template <typename T>
int forward_all(const RelayWgradStandardizedCall& call, cudaStream_t stream) {
  return in_launches(call, stream, standardized<T>);
}

template <typename T>
int backward_all(const RelayWgradStandardizedCall& call, cudaStream_t stream) {
  return in_launches(call, stream, standardized_gradient<T>);
}

}  // namespace
