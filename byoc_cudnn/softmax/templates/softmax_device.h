// ---- softmax over rows, and its gradient ---------------------------------------------------------------
//
// A row is in the registers of some threads, a few of a warp or a block, and is read once.  Longer ones
// are read again for each pass.  Loads are plain ones: those of read-only data may move above the wait for
// the kernel before.

#include <cmath>

namespace {

constexpr int kWarp = 32, kFew = 8;  // threads that have a row
constexpr int kMostPacks = 8;        // of a thread

struct Most {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// Of the `kGroup` threads that have a row; all get it.  A block's threads meet here, so all call it.
template <int kGroup, typename Op>
__device__ inline float over_group(float value, Op op) {
#pragma unroll
  for (int step = 1; step < (kGroup < kWarp ? kGroup : kWarp); step *= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  if constexpr (kGroup > kWarp) {
    __shared__ float values[kGroup / kWarp];
    __syncthreads();  // the last ones are read
    if (threadIdx.x % kWarp == 0) values[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = values[0];
    for (int warp = 1; warp < kGroup / kWarp; ++warp) value = op(value, values[warp]);
  }
  return value;
}

// exp(x): of halves in as few instructions as leave the kernel at memory's rate.
template <typename T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2) {
    return exp2f(x * 1.44269504088896340736f);
  } else {
    return expf(x);
  }
}

// V elements: one, or a pack.
template <int V, typename T>
__device__ inline void read(Pack<T, V>& pack, const T* at) {
  if constexpr (V == 1) {
    pack.value[0] = *at;
  } else {
    load_own<true>(pack, at, V);
  }
}

template <int V, typename T>
__device__ inline void write(T* at, const Pack<T, V>& pack) {
  if constexpr (V == 1) {
    *at = pack.value[0];
  } else {
    store<true>(at, pack, V);
  }
}

template <typename S, typename T, int V, int kPacks, int kGroup>
__global__ void __launch_bounds__(kThreads)
    softmax_rows(const __grid_constant__ RelayWgradSoftmaxCall z) {
  begin();
  const int64_t lane = threadIdx.x % kGroup;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kGroup) + threadIdx.x / kGroup;
  const bool there = row < z.rows;
  const S* const from = static_cast<const S*>(z.source) + row * z.source_pitch;
  T* const to = static_cast<T*>(z.result) + row * z.result_pitch;
  const Masks masks(z, row);
  float value[kPacks][V];
  float most = -INFINITY, sum = 0;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t column = (j * kGroup + lane) * V;
    Pack<S, V> pack{};
    if (there && column < z.columns) read(pack, from + column);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      value[j][i] = wide(pack.value[i]) * z.scale;
      if (!there || column + i >= z.columns) continue;
      if (z.masks > 0) value[j][i] += masks.at(column + i);
      most = fmaxf(most, value[j][i]);
    }
  }
  most = over_group<kGroup>(most, Most());
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const bool counts = (j * kGroup + lane) * V + i < z.columns;
      value[j][i] = counts ? exponential<T>(value[j][i] - most) : 0.f;
      sum += value[j][i];
    }
  }
  const float each = 1.f / over_group<kGroup>(sum, Plus());
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t column = (j * kGroup + lane) * V;
    if (!there || column >= z.result_pitch) continue;
    Pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      // What is behind a row is 0 also where the row is NaN.
      pack.value[i] = narrow<T>(column + i < z.columns ? value[j][i] * each : 0.f);
    }
    write(to + column, pack);
  }
}

// The sums of a row: of gradient and weight, and the weights', which are 1 but for their rounding.
__device__ inline float centre(float inner, float weights) {
  return weights > 0 ? inner / weights : inner;
}

template <typename S, typename T, int V, int kPacks, int kGroup>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient(const __grid_constant__ RelayWgradSoftmaxCall z) {
  begin();
  const int64_t lane = threadIdx.x % kGroup;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kGroup) + threadIdx.x / kGroup;
  const bool there = row < z.rows;
  const S* const from = static_cast<const S*>(z.source) + row * z.source_pitch;
  const T* const weights = static_cast<const T*>(z.weights) + row * z.weights_pitch;
  T* const to = static_cast<T*>(z.result) + row * z.result_pitch;
  Pack<S, V> d[kPacks];
  Pack<T, V> w[kPacks];
  float inner = 0, total = 0;
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t column = (j * kGroup + lane) * V;
    d[j] = {}, w[j] = {};
    if (!there || column >= z.columns) continue;
    read(d[j], from + column);
    read(w[j], weights + column);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (column + i >= z.columns) continue;
      inner += wide(d[j].value[i]) * wide(w[j].value[i]);
      total += wide(w[j].value[i]);
    }
  }
  inner = over_group<kGroup>(inner, Plus());
  const float level = centre(inner, over_group<kGroup>(total, Plus()));
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t column = (j * kGroup + lane) * V;
    if (!there || column >= z.result_pitch) continue;
    Pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const bool counts = column + i < z.columns;
      const float slope = wide(w[j].value[i]) * (wide(d[j].value[i]) - level);
      pack.value[i] = narrow<T>(counts ? slope * z.scale : 0.f);
      if (counts && z.wide != nullptr) z.wide[row * z.columns + column + i] = slope;
    }
    write(to + column, pack);
  }
}

// A block has a row that is too long for registers.
template <typename S, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_long_rows(const __grid_constant__ RelayWgradSoftmaxCall z) {
  begin();
  const int64_t row = blockIdx.x;
  const S* const from = static_cast<const S*>(z.source) + row * z.source_pitch;
  T* const to = static_cast<T*>(z.result) + row * z.result_pitch;
  const Masks masks(z, row);
  const auto score = [&](int64_t i) { return wide(from[i]) * z.scale + masks.at(i); };
  float most = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < z.columns; i += kThreads) most = fmaxf(most, score(i));
  most = over_group<kThreads>(most, Most());
  for (int64_t i = threadIdx.x; i < z.columns; i += kThreads) sum += exponential<T>(score(i) - most);
  const float each = 1.f / over_group<kThreads>(sum, Plus());
  for (int64_t i = threadIdx.x; i < z.result_pitch; i += kThreads) {
    to[i] = narrow<T>(i < z.columns ? exponential<T>(score(i) - most) * each : 0.f);
  }
}

template <typename S, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_long_gradient(const __grid_constant__ RelayWgradSoftmaxCall z) {
  begin();
  const int64_t row = blockIdx.x;
  const S* const from = static_cast<const S*>(z.source) + row * z.source_pitch;
  const T* const weights = static_cast<const T*>(z.weights) + row * z.weights_pitch;
  T* const to = static_cast<T*>(z.result) + row * z.result_pitch;
  float inner = 0, total = 0;
  for (int64_t i = threadIdx.x; i < z.columns; i += kThreads) {
    inner += wide(from[i]) * wide(weights[i]);
    total += wide(weights[i]);
  }
  inner = over_group<kThreads>(inner, Plus());
  const float level = centre(inner, over_group<kThreads>(total, Plus()));
  for (int64_t i = threadIdx.x; i < z.result_pitch; i += kThreads) {
    const float slope = i < z.columns ? wide(weights[i]) * (wide(from[i]) - level) : 0.f;
    to[i] = narrow<T>(i < z.columns ? slope * z.scale : 0.f);
    if (i < z.columns && z.wide != nullptr) z.wide[row * z.columns + i] = slope;
  }
}

// ---- which kernel ----

template <typename Source, typename Result>
struct Forward {
  using S = Source;
  using T = Result;
  static constexpr auto whole_row = softmax_long_rows<S, T>;
  template <int V, int kPacks, int kGroup>
  static constexpr auto kept_row = softmax_rows<S, T, V, kPacks, kGroup>;
};

template <typename Source, typename Result>
struct Backward {
  using S = Source;
  using T = Result;
  static constexpr auto whole_row = softmax_long_gradient<S, T>;
  template <int V, int kPacks, int kGroup>
  static constexpr auto kept_row = softmax_gradient<S, T, V, kPacks, kGroup>;
};

template <typename Kind, int V, int kPacks, int kGroup>
cudaError_t started(const RelayWgradSoftmaxCall& z, cudaStream_t stream) {
  constexpr int rows = kThreads / kGroup;
  const dim3 grid(static_cast<unsigned>((z.rows + rows - 1) / rows));
  return launch(Kind::template kept_row<V, kPacks, kGroup>, grid, kThreads, stream, z);
}

// With as few threads as have the row's packs; `kEach` times as many of one element as of whole packs.
template <typename Kind, int V, int kEach>
cudaError_t by_length(const RelayWgradSoftmaxCall& z, cudaStream_t stream) {
  const int64_t widest = z.columns > z.result_pitch ? z.columns : z.result_pitch;
  const int64_t packs = (widest + int64_t{V} * kEach - 1) / (int64_t{V} * kEach);
  if (packs <= kFew) return started<Kind, V, kEach, kFew>(z, stream);
  if (packs <= kWarp) return started<Kind, V, kEach, kWarp>(z, stream);
  if (packs <= 2 * kWarp) return started<Kind, V, 2 * kEach, kWarp>(z, stream);
  if (packs <= 4 * kWarp) return started<Kind, V, 4 * kEach, kWarp>(z, stream);
  if (packs <= 2 * kThreads) return started<Kind, V, 2 * kEach, kThreads>(z, stream);
  if (packs <= kMostPacks * kThreads) return started<Kind, V, kMostPacks * kEach, kThreads>(z, stream);
  return launch(Kind::whole_row, dim3(static_cast<unsigned>(z.rows)), kThreads, stream, z);
}

template <typename Kind>
int of_all(const RelayWgradSoftmaxCall& z, cudaStream_t stream) {
  using T = typename Kind::T;
  if (z.rows == 0) return 0;
  if (z.rows > 0x7fffffff) return finished(cudaErrorInvalidValue);
  if constexpr (std::is_same_v<typename Kind::S, T>) {
    bool whole = is_whole<T>(z.source_pitch, {z.source, z.result});
    whole = whole && is_whole<T>(z.result_pitch, {z.weights}) && z.weights_pitch % kVector<T> == 0;
    if (whole) return finished(by_length<Kind, kVector<T>, 1>(z, stream));
  }
  return finished(by_length<Kind, 1, kVector<T>>(z, stream));
}

}  // namespace
