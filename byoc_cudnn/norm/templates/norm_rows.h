// ---- statistics of each row: layer normalization over channels that are last --------------------------
//
// A row stays in the registers of `width` threads, K packs of V channels each, from the sums to their
// use: forward reads x once, backward dy and x once.  With g = dy act'(z), n = (x - mean) rstd:
//   dx = rstd (gamma g - mean(gamma g) - n mean(gamma g n)),  dgamma = sum(g n),  dbeta = sum(g),
// the last two over all rows: a thread's sums stay in registers too, a block writes its own, and a
// second kernel adds up the blocks in their order, so a second run gives the same bits.

namespace {

struct Rows {
  int64_t rows, channels;
  int width, blocks;  // width: threads of a row, a power of two
  __host__ __device__ int height() const { return kThreads / width; }
};

constexpr int kRowPacks = 4;  // of a thread, at most
constexpr int64_t kRowWriters = 8;  // blocks of a multiprocessor forward: parameters are read once each

// The sums of `width` threads side by side, for each of them; all threads of the block call it.
template <int N, typename A>
__device__ inline void over_row(A (&sums)[N], int width) {
  __shared__ A parts[N][kThreads / 32];
  for (int step = 1; step < width && step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
  }
  if (width <= 32) return;
  const int warp = threadIdx.x / 32, each = width / 32, first = warp / each * each;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) parts[i][warp] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sums[i] = 0;
    for (int w = 0; w < each; ++w) sums[i] += parts[i][first + w];
  }
  __syncthreads();
}

// Of a pack's channels, where it is told when code is compiled whether all lie at 16 bytes.
template <bool whole, int V, typename A>
__device__ inline void load_parameters(A (&to)[V], const A* from, int count) {
  if constexpr (whole) {
    load_aligned(to, from);
  } else {
    load_channels(to, from, count);
  }
}

// How many channels of a pack are there.
template <int V>
__device__ inline int there(int64_t left) {
  return left >= V ? V : left > 0 ? static_cast<int>(left) : 0;
}

// Packs of y and dy, which may be halves of float32 rows: 8 bytes each then.
template <bool whole, typename R, int V>
__device__ inline void load_made(Pack<R, V>& pack, const R* at, int64_t left) {
  if constexpr (whole && sizeof(Pack<R, V>) == 8) {
    const uint2 bits = *reinterpret_cast<const uint2*>(at);
    memcpy(&pack, &bits, sizeof(bits));
  } else {
    load_own<whole>(pack, at, left);
  }
}

template <bool whole, typename R, int V>
__device__ inline void store_made(R* at, const Pack<R, V>& pack, int64_t left) {
  if constexpr (whole && sizeof(Pack<R, V>) == 8) {
    uint2 bits;
    memcpy(&bits, &pack, sizeof(bits));
    *reinterpret_cast<uint2*>(at) = bits;
  } else {
    store<whole>(at, pack, left);
  }
}

template <typename T, typename R, int V, bool whole, int K, Activation act>
__global__ void __launch_bounds__(kThreads)
    rows_forward(const T* x, const Sum<T>* __restrict__ gamma,
                 const Sum<T>* __restrict__ beta, R* y, Sum<T>* __restrict__ mean,
                 Sum<T>* __restrict__ rstd, Sum<T> alpha, Sum<T> epsilon, Rows z) {
  using A = Sum<T>;
  begin();
  const int lane = threadIdx.x & (z.width - 1), group = threadIdx.x / z.width;
  const A share = A(1) / A(z.channels);
  A slope[K][V] = {}, level[K][V] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int64_t channel = (int64_t{k} * z.width + lane) * V;
    const int count = there<V>(z.channels - channel);
    if (!count) continue;
    load_parameters<whole>(slope[k], gamma + channel, count);
    load_parameters<whole>(level[k], beta + channel, count);
  }
  for (int64_t first = int64_t{blockIdx.x} * z.height(); first < z.rows;
       first += int64_t{gridDim.x} * z.height()) {
    const int64_t row = first + group;
    const bool is_row = row < z.rows;
    Pack<T, V> packs[K];
    A sums[1] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t channel = (int64_t{k} * z.width + lane) * V;
      const int count = is_row ? there<V>(z.channels - channel) : 0;
      if (count) load_own<whole>(packs[k], x + row * z.channels + channel, count);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (i < count) sums[0] += wide(packs[k].value[i]);
      }
    }
    over_row(sums, z.width);
    const A middle = sums[0] * share;
    sums[0] = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int count = is_row ? there<V>(z.channels - (int64_t{k} * z.width + lane) * V) : 0;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A apart = i < count ? less(wide(packs[k].value[i]), middle) : A(0);
        sums[0] += apart * apart;
      }
    }
    over_row(sums, z.width);
    const A scale = A(1) / sqrt(sums[0] * share + epsilon);
    if (is_row && lane == 0) {
      mean[row] = middle;
      rstd[row] = scale;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t channel = (int64_t{k} * z.width + lane) * V;
      const int count = is_row ? there<V>(z.channels - channel) : 0;
      if (!count) continue;
      Pack<R, V> made;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A n = times(less(wide(packs[k].value[i]), middle), scale);
        const A v = times_plus(n, slope[k][i], level[k][i]);
        made.value[i] = narrow<R>(activated<act, T>(v, alpha));
      }
      store_made<whole>(y + row * z.channels + channel, made, count);
    }
  }
}

template <typename T, typename R, int V, bool whole, int K, Activation act>
__global__ void __launch_bounds__(kThreads)
    rows_backward(const R* dy, const T* x,
                  const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                  const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                  T* dx, Sum<T>* __restrict__ partial, Sum<T> alpha, Rows z) {
  using A = Sum<T>;
  __shared__ A shared[2][kThreads * V];
  begin();
  const int lane = threadIdx.x & (z.width - 1), group = threadIdx.x / z.width;
  const A share = A(1) / A(z.channels);
  A plain[K][V] = {}, weighted[K][V] = {};
  for (int64_t first = int64_t{blockIdx.x} * z.height(); first < z.rows;
       first += int64_t{gridDim.x} * z.height()) {
    const int64_t row = first + group;
    const bool is_row = row < z.rows;
    const A middle = is_row ? __ldg(mean + row) : A(0), scale = is_row ? __ldg(rstd + row) : A(0);
    Pack<R, V> g[K];
    Pack<T, V> a[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t channel = (int64_t{k} * z.width + lane) * V;
      const int count = is_row ? there<V>(z.channels - channel) : 0;
      if (!count) continue;
      load_made<whole>(g[k], dy + row * z.channels + channel, count);
      load_own<whole>(a[k], x + row * z.channels + channel, count);
    }
    // What comes through the activation, and n.
    const auto pair = [&](int k, int i, A slope, A level, A& through, A& n) {
      n = times(less(wide(a[k].value[i]), middle), scale);
      through = wide(g[k].value[i]);
      if constexpr (act != Activation::kNone) {
        through = before<act, T>(through, times_plus(n, slope, level), alpha);
      }
    };
    A sums[2] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t channel = (int64_t{k} * z.width + lane) * V;
      const int count = is_row ? there<V>(z.channels - channel) : 0;
      if (!count) continue;
      A slope[V], level[V] = {};
      load_parameters<whole>(slope, gamma + channel, count);
      if constexpr (act != Activation::kNone) {
        load_parameters<whole>(level, beta + channel, count);
      }
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (i >= count) continue;
        A through, n;
        pair(k, i, slope[i], level[i], through, n);
        plain[k][i] += through;
        weighted[k][i] += through * n;
        sums[0] += through * slope[i];
        sums[1] += through * slope[i] * n;
      }
    }
    over_row(sums, z.width);
    const A even = sums[0] * share, along = sums[1] * share;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int64_t channel = (int64_t{k} * z.width + lane) * V;
      const int count = is_row ? there<V>(z.channels - channel) : 0;
      if (!count) continue;
      A slope[V], level[V] = {};
      load_parameters<whole>(slope, gamma + channel, count);
      if constexpr (act != Activation::kNone) {
        load_parameters<whole>(level, beta + channel, count);
      }
      Pack<T, V> made;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A through, n;
        pair(k, i, slope[i], level[i], through, n);
        made.value[i] = narrow<T>(scale * (through * slope[i] - even - n * along));
      }
      store<whole>(dx + row * z.channels + channel, made, count);
    }
  }
  A* const to = partial + 2 * int64_t{blockIdx.x} * z.channels;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      shared[0][threadIdx.x * V + i] = plain[k][i];
      shared[1][threadIdx.x * V + i] = weighted[k][i];
    }
    __syncthreads();
    const int stride = z.width * V;
    for (int c = threadIdx.x; c < 2 * stride; c += kThreads) {
      const int which = c / stride, at = c % stride;
      const int64_t channel = int64_t{k} * stride + at;
      if (channel >= z.channels) continue;
      A sum = 0;
      for (int r = 0; r < z.height(); ++r) sum += shared[which][r * stride + at];
      to[which * z.channels + channel] = sum;
    }
    __syncthreads();
  }
}

template <typename A>
__global__ void __launch_bounds__(kFew* kParts, 1)
    rows_parameters(const A* __restrict__ partial, A* __restrict__ dgamma, A* __restrict__ dbeta,
                    Rows z) {
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const int64_t from = channel < z.channels ? channel : 0;
  const auto sums = over_parts_of<2, A>(z.blocks, [&](int y) {
    const A* const at = partial + 2 * int64_t{y} * z.channels + from;
    return Terms<2, A>{__ldg(at), __ldg(at + z.channels)};
  });
  if (channel < z.channels && threadIdx.x < kFew) {
    dbeta[channel] = sums.of[0];
    dgamma[channel] = sums.of[1];
  }
}

// Threads of a row and packs of a thread, so that few are idle, and of those the most threads; none
// (no width) where a row is too long.
template <int V>
inline Rows rows_of(const RelayWgradNormCall& call, int& packs) {
  const int64_t columns = (call.channels + V - 1) / V;
  Rows z{call.images, call.channels, 0, 0};
  packs = 0;
  for (int width = kThreads; width >= 4; width /= 2) {
    const int64_t each = (columns + width - 1) / width;
    if (each <= kRowPacks && (z.width == 0 || width * each < int64_t{z.width} * packs)) {
      z.width = width;
      packs = static_cast<int>(each);
    }
  }
  return z;
}

// A call of `what<K>` for the packs that there are.
template <typename What>
inline cudaError_t of_packs(int packs, What what) {
  switch (packs) {
    case 1: return what(std::integral_constant<int, 1>{});
    case 2: return what(std::integral_constant<int, 2>{});
    case 3: return what(std::integral_constant<int, 3>{});
    default: return what(std::integral_constant<int, 4>{});
  }
}

inline int blocks_of(const Rows& z, int64_t most) {
  const int64_t useful = (z.rows + z.height() - 1) / z.height();
  return static_cast<int>(useful < most ? useful : most < 1 ? 1 : most);
}

template <typename T, typename R, bool whole, Activation act>
int forward_rows_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  int packs;
  Rows z = rows_of<V>(call, packs);
  if (z.width == 0 || call.rows != 1 || call.groups != 1) return -static_cast<int>(cudaErrorInvalidValue);
  z.blocks = blocks_of(z, kRowWriters * call.multiprocessors);
  return finished(of_packs(packs, [&](auto k) {
    return launch(rows_forward<T, R, V, whole, decltype(k)::value, act>, dim3(z.blocks), kThreads, stream,
                  static_cast<const T*>(call.x), static_cast<const A*>(call.gamma),
                  static_cast<const A*>(call.beta), static_cast<R*>(call.out),
                  static_cast<A*>(call.first), static_cast<A*>(call.second),
                  static_cast<A>(call.alpha), static_cast<A>(call.epsilon), z);
  }));
}

template <typename T, Activation act, typename R = T>
int forward_rows(const RelayWgradNormCall& call, cudaStream_t stream) {
  return is_whole<T>(call.channels, {call.x, call.out, call.gamma, call.beta}) ? forward_rows_by<T, R, true, act>(call, stream)
                                                        : forward_rows_by<T, R, false, act>(call, stream);
}

template <typename T, typename R, bool whole, Activation act>
int backward_rows_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  int packs;
  Rows z = rows_of<V>(call, packs);
  if (z.width == 0 || call.rows != 1 || call.groups != 1) return -static_cast<int>(cudaErrorInvalidValue);
  const int64_t room = call.workspace_bytes / (kNormRowSums * static_cast<int64_t>(sizeof(A)) * call.channels);
  const int64_t most = kNormRowBlocks * call.multiprocessors;
  z.blocks = blocks_of(z, most < room ? most : room);
  A* const partial = static_cast<A*>(call.workspace);
  const cudaError_t error = of_packs(packs, [&](auto k) {
    return launch(rows_backward<T, R, V, whole, decltype(k)::value, act>, dim3(z.blocks), kThreads, stream,
                  static_cast<const R*>(call.dy), static_cast<const T*>(call.x),
                  static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                  static_cast<const A*>(call.mean), static_cast<const A*>(call.rstd),
                  static_cast<T*>(call.out), partial, static_cast<A>(call.alpha), z);
  });
  if (error != cudaSuccess) return finished(error);
  const unsigned few = static_cast<unsigned>((call.channels + kFew - 1) / kFew);
  return finished(launch(rows_parameters<A>, dim3(few), kFew * kParts, stream, partial,
                         static_cast<A*>(call.first), static_cast<A*>(call.second), z));
}

template <typename T, Activation act, typename R = T>
int backward_rows(const RelayWgradNormCall& call, cudaStream_t stream) {
  return is_whole<T>(call.channels, {call.x, call.dy, call.out, call.gamma, call.beta})
             ? backward_rows_by<T, R, true, act>(call, stream)
             : backward_rows_by<T, R, false, act>(call, stream);
}

}  // namespace
