// ---- updates of many tensors in one launch ---------------------------------------------------------------
//
// A block takes kTile elements of one tensor, in order.  Loads are plain ones: those of read-only data
// may move above the wait for the kernel before.

#include <cmath>

namespace {

constexpr int kMost = 80;  // tensors of a launch: their table is the kernel's parameter
constexpr int kTile = static_cast<int>(kRelayWgradTile);

enum Rule { kSgd, kMomentum, kAdam };

template <typename T>
struct Table {
  T* value[kMost];
  const T* gradient[kMost];
  T* first[kMost];
  T* second[kMost];
  uint32_t count[kMost];
  uint32_t begin[kMost + 1];  // of a tensor's blocks
  bool whole[kMost];          // accesses of 16 bytes fit
  bool statistic[kMost];
  bool decays[kMost];
};

template <typename T>
struct Numbers {
  T weight_decay, momentum, beta1, beta2, epsilon, clip, rest1, rest2;
  bool decoupled;
};

// What there is one of; `writes` in the first launch.
template <typename T>
struct Scalars {
  const bool *updates, *runs;
  const T* rates;
  const int64_t* steps;
  int64_t* new_steps;
  const T *product1, *product2;
  T *new_product1, *new_product2;
  bool writes;
};

template <typename T>
__device__ inline void get(Pack<T, kVector<T>>& pack, const T* at, bool whole, int left) {
  if (whole) {
    const uint4 bits = *reinterpret_cast<const uint4*>(at);
    memcpy(&pack, &bits, sizeof(bits));
  } else {
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) pack.value[i] = i < left ? at[i] : T(0);
  }
}

template <typename T>
__device__ inline void put(T* at, const Pack<T, kVector<T>>& pack, bool whole, int left) {
  if (whole) {
    store<true>(at, pack, left);
  } else {
    store<false>(at, pack, left);
  }
}

template <typename T, int R>
__device__ inline void update(const Numbers<T>& n, T lr, T factor, T decay, T left1, T left2, T& p, T g, T& a, T& b) {
  if (factor != T(1)) g = factor * g;
  if (n.clip != T(0)) g = g > n.clip ? n.clip : g < -n.clip ? -n.clip : g;
  if (decay != T(0) && n.decoupled) {
    p = p * (T(1) - lr * decay);
  } else if (decay != T(0)) {
    g = decay * p + g;
  }
  if constexpr (R == kSgd) {
    p = p - lr * g;
  } else if constexpr (R == kMomentum) {
    a = n.momentum * a + g;
    p = p - lr * a;
  } else {
    a = n.beta1 * a + n.rest1 * g;
    b = n.beta2 * b + n.rest2 * (g * g);
    p = p - lr * ((a / left1) / (sqrt(b / left2) + n.epsilon));
  }
}

template <typename T, int R>
__global__ void __launch_bounds__(kThreads)
    updated(const __grid_constant__ Table<T> table, const Numbers<T> n, const Scalars<T> s,
            int tensors) {
  begin();
  const bool updates = *s.updates;
  T left1 = T(1), left2 = T(1);
  if constexpr (R == kAdam) {
    left1 = *s.product1 * n.beta1;
    left2 = *s.product2 * n.beta2;
  }
  if (s.writes && blockIdx.x == 0 && threadIdx.x == 0) {
    *s.new_steps = *s.steps + updates;
    if constexpr (R == kAdam) {
      *s.new_product1 = updates ? left1 : *s.product1;
      *s.new_product2 = updates ? left2 : *s.product2;
    }
  }
  left1 = T(1) - left1;
  left2 = T(1) - left2;
  const int mine = item_of(table.begin, tensors);
  const bool statistic = table.statistic[mine];
  if (statistic ? !*s.runs : !updates) return;
  const T lr = s.rates[0], factor = s.rates[1];
  const T decay = table.decays[mine] ? n.weight_decay : T(0);
  const uint32_t count = table.count[mine];
  const uint32_t start = (blockIdx.x - table.begin[mine]) * kTile;
  constexpr int V = kVector<T>;
#pragma unroll 4
  for (int turn = 0; turn < kTile / (kThreads * V); ++turn) {
    const uint32_t at = start + (turn * kThreads + threadIdx.x) * V;
    if (at >= count) break;
    const int left = count - at < V ? static_cast<int>(count - at) : V;
    const bool whole = table.whole[mine] && left == V;
    Pack<T, V> p, g, a, b;
    get(g, table.gradient[mine] + at, whole, left);
    if (statistic) {
      put(table.value[mine] + at, g, whole, left);
      continue;
    }
    get(p, table.value[mine] + at, whole, left);
    if constexpr (R != kSgd) get(a, table.first[mine] + at, whole, left);
    if constexpr (R == kAdam) get(b, table.second[mine] + at, whole, left);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      update<T, R>(n, lr, factor, decay, left1, left2, p.value[i], g.value[i], a.value[i], b.value[i]);
    }
    put(table.value[mine] + at, p, whole, left);
    if constexpr (R != kSgd) put(table.first[mine] + at, a, whole, left);
    if constexpr (R == kAdam) put(table.second[mine] + at, b, whole, left);
  }
}

// The sum of a block's threads, in its first one.
__device__ inline int64_t block_sum(int64_t mine) {
  __shared__ int64_t sums[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) {
    mine += __shfl_xor_sync(0xffffffffu, static_cast<long long>(mine), step);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
  __syncthreads();
  int64_t all = 0;
  for (int i = 0; i < kThreads / 32; ++i) all += sums[i];
  return all;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    counted(const __grid_constant__ Table<T> table, int tensors, int32_t* partial) {
  begin();
  const int mine = item_of(table.begin, tensors);
  const uint32_t count = table.count[mine];
  const uint32_t start = (blockIdx.x - table.begin[mine]) * kTile;
  constexpr int V = kVector<T>;
  const T most = sizeof(T) == 8 ? T(1.7976931348623157e308) : T(3.4028234663852886e38f);
  int64_t wrong = 0;
#pragma unroll 4
  for (int turn = 0; turn < kTile / (kThreads * V); ++turn) {
    const uint32_t at = start + (turn * kThreads + threadIdx.x) * V;
    if (at >= count) break;
    const int left = count - at < V ? static_cast<int>(count - at) : V;
    Pack<T, V> p;
    get(p, table.value[mine] + at, table.whole[mine] && left == V, left);
#pragma unroll
    // A comparison with NaN is false.
    for (int i = 0; i < V; ++i) wrong += !(p.value[i] <= most && p.value[i] >= -most);
  }
  const int64_t all = block_sum(wrong);
  if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<int32_t>(all);
}

__global__ void __launch_bounds__(kThreads) summed(const int32_t* partial, int blocks, double* found) {
  begin();
  int64_t mine = 0;
  for (int i = threadIdx.x; i < blocks; i += kThreads) mine += partial[i];
  const int64_t all = block_sum(mine);
  if (threadIdx.x == 0) *found = static_cast<double>(all);
}

// The next tensors of a call from `start` on: how many, and the blocks that they need.
template <typename T>
int fill(Table<T>& table, const RelayWgradUpdatesCall& call, int64_t start, uint32_t& blocks) {
  const int tensors = static_cast<int>(call.count - start < kMost ? call.count - start : kMost);
  blocks = 0;
  for (int i = 0; i < tensors; ++i) {
    const RelayWgradUpdate& one = call.tensors[start + i];
    table.value[i] = static_cast<T*>(one.value);
    table.gradient[i] = static_cast<const T*>(one.gradient);
    table.first[i] = static_cast<T*>(one.first);
    table.second[i] = static_cast<T*>(one.second);
    table.count[i] = static_cast<uint32_t>(one.count);
    table.statistic[i] = one.statistic;
    table.decays[i] = one.decays;
    table.whole[i] = is_whole<T>(0, {one.value, one.gradient, one.first, one.second});
    table.begin[i] = blocks;
    blocks += static_cast<uint32_t>((one.count + kTile - 1) / kTile);
  }
  table.begin[tensors] = blocks;
  return tensors;
}

template <typename T, int R>
int update_all(const RelayWgradUpdatesCall& call, cudaStream_t stream) {
  const RelayWgradNumbers& d = call.numbers;
  const Numbers<T> n{T(d.weight_decay), T(d.momentum), T(d.beta1), T(d.beta2),
                     T(d.epsilon),      T(d.clip),     T(d.rest1), T(d.rest2), d.decoupled != 0};
  for (int64_t start = 0; start < call.count; start += kMost) {
    Table<T> table{};
    uint32_t blocks = 0;
    const int tensors = fill(table, call, start, blocks);
    const Scalars<T> s{call.updates, call.runs, static_cast<const T*>(call.rates), call.steps,
                       call.new_steps,
                       static_cast<const T*>(call.product1), static_cast<const T*>(call.product2),
                       static_cast<T*>(call.new_product1), static_cast<T*>(call.new_product2),
                       start == 0};
    const cudaError_t error =
        launch(updated<T, R>, dim3(blocks), kThreads, stream, table, n, s, tensors);
    if (error != cudaSuccess) return finished(error);
  }
  return 0;
}

template <typename T>
int count_all(const RelayWgradUpdatesCall& call, cudaStream_t stream) {
  int32_t* partial = call.partial;
  for (int64_t start = 0; start < call.count; start += kMost) {
    Table<T> table{};
    uint32_t blocks = 0;
    const int tensors = fill(table, call, start, blocks);
    const cudaError_t error =
        launch(counted<T>, dim3(blocks), kThreads, stream, table, tensors, partial);
    if (error != cudaSuccess) return finished(error);
    partial += blocks;
  }
  return finished(launch(summed, dim3(1), kThreads, stream,
                         static_cast<const int32_t*>(call.partial),
                         static_cast<int>(partial - call.partial), call.found));
}

}  // namespace
