// ---- normalizations that are added: a block's last, and those of its other branches ----------------------
//
// y = activation(n(x) + n(x2) + …): no result of one is written, and all gradients come of one pass.  What
// the activation lets through goes backward as bits.  What passes read of a normalization, a value a
// channel, is in shared memory: of several it is more than a thread has registers.

namespace {

// Rows of a thread whose loads are under way together, backward: of four normalizations two would be more
// than a thread has registers.
template <int N>
constexpr int kAtOnce = N > 3 ? 1 : 2;
static_assert(kUnroll % 4 == 0);

// One of them: what its passes read of it, a value a channel.
template <typename T>
struct Side {
  const T* x;
  const Sum<T> *gamma, *beta, *mean, *rstd;
  Sum<T> *dgamma, *dbeta;
  T* dx;
};

template <typename T, int N>
struct Sides {
  Side<T> of[N];
};

// Values of a block's channels.  Those that threads side by side read at once, of 16 bytes, are side by side.
template <typename A, int V>
struct alignas(16) Columns {
  static constexpr int kEach = 16 / sizeof(A);
  A at[32 * V];
  __device__ A& of(int column) {
    const int i = column % V;
    return at[(i / kEach * 32 + column / V) * kEach + i % kEach];
  }
  __device__ void read(A (&to)[V], int lane) const {
#pragma unroll
    for (int i = 0; i < V; i += kEach) memcpy(to + i, at + (i / kEach * 32 + lane) * kEach, 16);
  }
};

// Calls `each(column, channel)` for all channels of a block; of those that are not there with the first.
template <int V, typename Each>
__device__ inline void each_column(const Plain& shape, Each each) {
  for (int column = threadIdx.x; column < shape.width * V; column += kThreads) {
    const int64_t channel = shape.tile() * shape.width * V + column;
    each(column, channel < shape.channels ? channel : 0);
  }
  __syncthreads();
}

// Calls `rows_from(row, count)` for all rows of a thread, so many at a time, or one by one in a last chunk.
template <bool backwards, bool whole, int kRows, typename RowsFrom>
__device__ inline void each_rows(const Plain& shape, int row, RowsFrom rows_from) {
  each_chunk<backwards, whole>(
      shape, row,
      [&](int64_t first) {
#pragma unroll 1
        for (int part = 0; part < kUnroll; part += kRows) {
          rows_from(first + int64_t{part} * shape.height(), std::integral_constant<int, kRows>());
        }
      },
      [&](int64_t one) { rows_from(one, std::integral_constant<int, 1>()); });
}

template <typename T, int V, int N, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    normalized_added(Sides<T, N> sides, T* y, uint8_t* __restrict__ mask, Sum<T> alpha, Plain shape) {
  using A = Sum<T>;
  __shared__ Columns<A, V> means[N], scales[N], shifts;
  begin();
  each_column<V>(shape, [&](int column, int64_t channel) {
    A shift = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const Side<T>& side = sides.of[n];
      means[n].of(column) = side.mean[channel];
      scales[n].of(column) = times(side.gamma[channel], side.rstd[channel]);
      shift += side.beta[channel];
    }
    shifts.of(column) = shift;
  });
  const Place at(shape, V);
  if (at.left <= 0) return;
  const int lane = threadIdx.x & (shape.width - 1);
  auto rows_from = [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::value;
    A v[kRows][V];
    Pack<T, V> x[N][kRows];
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        const int64_t i = (row + int64_t{u} * shape.height()) * shape.channels + at.channel;
        load_own<whole>(x[n][u], sides.of[n].x + i, at.left);
      }
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) shifts.read(v[u], lane);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      A mean[V], scale[V];
      means[n].read(mean, lane);
      scales[n].read(scale, lane);
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          v[u][i] = times_plus(less(wide(x[n][u].value[i]), mean[i]), scale[i], v[u][i]);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const int64_t to = row + int64_t{u} * shape.height();
      Pack<T, V> out;
#pragma unroll
      for (int i = 0; i < V; ++i) out.value[i] = narrow<T>(activated<act, T>(v[u][i], alpha));
      store<whole>(y + to * shape.channels + at.channel, out, at.left);
      mask[to * shape.packs + at.pack] = passing<act>(out);
    }
  };
  each_rows<true, whole, (N == 2 ? 4 : 2)>(shape, at.row, rows_from);
}

// The gradient behind the activation, of which those of all sides are made.
template <bool whole, bool summed, typename T, int V>
struct Behind {
  Pack<T, V> g, more;
  uint8_t bits;
  __device__ void read(const T* dy, const T* dy2, const uint8_t* mask, int64_t row, const Plain& shape,
                       const Place& at) {
    const int64_t i = row * shape.channels + at.channel;
    load_own<whole>(g, dy + i, at.left);
    if constexpr (summed) load_own<whole>(more, dy2 + i, at.left);
    bits = __ldg(mask + row * shape.packs + at.pack);
  }
  __device__ Sum<T> of(int i) const {
    if ((bits >> i & 1) == 0) return 0;
    if constexpr (summed) return wide(narrow<T>(wide(g.value[i]) + wide(more.value[i])));
    return wide(g.value[i]);
  }
};

// Some rows of it, and of all sides.  `own`: a result may lie in the place of a side's x.
template <bool own, bool whole, bool summed, typename T, int V, int N, int kRows>
__device__ inline void read_rows(Behind<whole, summed, T, V> (&behind)[kRows], Pack<T, V> (&x)[N][kRows],
                                 const T* dy, const T* dy2, const uint8_t* mask, const Sides<T, N>& sides,
                                 int64_t row, const Plain& shape, const Place& at) {
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t from = row + int64_t{u} * shape.height();
    behind[u].read(dy, dy2, mask, from, shape, at);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const T* const of = sides.of[n].x + from * shape.channels + at.channel;
      if constexpr (own) {
        load_own<whole>(x[n][u], of, at.left);
      } else {
        load<whole>(x[n][u], of, at.left);
      }
    }
  }
}

// Sums of a channel: of the gradient, and of its products with each side's distance from the mean.
template <typename T, int V, int N, bool whole, bool summed>
__global__ void __launch_bounds__(kThreads, kResident)
    sums_of_added(const T* dy, const T* dy2, const uint8_t* __restrict__ mask, Sides<T, N> sides,
                  Sum<T>* __restrict__ partial, Plain shape) {
  using A = Sum<T>;
  __shared__ A sums[kThreads * V];
  __shared__ Columns<A, V> means[N];
  begin();
  each_column<V>(shape, [&](int column, int64_t channel) {
#pragma unroll
    for (int n = 0; n < N; ++n) means[n].of(column) = sides.of[n].mean[channel];
  });
  const Place at(shape, V);
  const int lane = threadIdx.x & (shape.width - 1);
  A seen[N + 1][V] = {};
  auto rows_from = [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::value;
    Behind<whole, summed, T, V> behind[kRows];
    Pack<T, V> x[N][kRows];
    read_rows<false>(behind, x, dy, dy2, mask, sides, row, shape, at);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      A mean[V];
      means[n].read(mean, lane);
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const A d = behind[u].of(i);
          if (n == 0) seen[0][i] += d;
          seen[n + 1][i] = times_plus(d, less(wide(x[n][u].value[i]), mean[i]), seen[n + 1][i]);
        }
      }
    }
  };
  if (at.left > 0) each_rows<false, whole, kAtOnce<N>>(shape, at.row, rows_from);
  const int stride = shape.width * V;
#pragma unroll
  for (int which = 0; which <= N; ++which) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) sums[threadIdx.x * V + i] = seen[which][i];
    __syncthreads();
    for (int c = threadIdx.x; c < stride; c += kThreads) {
      const int64_t channel = int64_t{blockIdx.x} * stride + c;
      if (channel >= shape.channels) break;
      A sum = 0;
      for (int row = 0; row < shape.height(); ++row) sum += sums[row * stride + c];
      partial[((N + 1) * blockIdx.y + which) * shape.channels + channel] = sum;
    }
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kFew* kParts, 1)
    parameters_of_added(const Sum<T>* __restrict__ partial, Sides<T, N> sides, Plain shape) {
  using A = Sum<T>;
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const bool there = channel < shape.channels;
  const A* const from = partial + (there ? channel : 0);
  A rstd[N];
#pragma unroll
  for (int n = 0; n < N; ++n) rstd[n] = sides.of[n].rstd[there ? channel : 0];
  const auto sums = over_parts_of<N + 1, A>(shape.blocks, [&](int y) {
    Terms<N + 1, A> terms;
#pragma unroll
    for (int which = 0; which <= N; ++which) terms.of[which] = from[((N + 1) * y + which) * shape.channels];
    return terms;
  });
  if (!there || threadIdx.x >= kFew) return;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sides.of[n].dbeta[channel] = sums.of[0];
    sides.of[n].dgamma[channel] = sums.of[n + 1] * rstd[n];
  }
}

// Of each side: dx = scale d - ((x - mean) slope + level).
template <typename T, int V, int N, bool whole, bool summed>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_of_added(const T* dy, const T* dy2, const uint8_t* __restrict__ mask, Sides<T, N> sides,
                      Plain shape) {
  using A = Sum<T>;
  __shared__ Columns<A, V> means[N], scales[N], slopes[N], levels[N];
  begin();
  each_column<V>(shape, [&](int column, int64_t channel) {
    const A each = A(1) / A(shape.rows);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const Side<T>& side = sides.of[n];
      const A rstd = side.rstd[channel], scale = times(side.gamma[channel], rstd);
      means[n].of(column) = side.mean[channel];
      scales[n].of(column) = scale;
      slopes[n].of(column) = scale * rstd * (side.dgamma[channel] * each);
      levels[n].of(column) = scale * (side.dbeta[channel] * each);
    }
  });
  const Place at(shape, V);
  if (at.left <= 0) return;
  const int lane = threadIdx.x & (shape.width - 1);
  auto rows_from = [&](int64_t row, auto count) {
    constexpr int kRows = decltype(count)::value;
    Behind<whole, summed, T, V> behind[kRows];
    Pack<T, V> x[N][kRows];
    read_rows<true>(behind, x, dy, dy2, mask, sides, row, shape, at);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      A mean[V], scale[V], slope[V], level[V];
      means[n].read(mean, lane);
      scales[n].read(scale, lane);
      slopes[n].read(slope, lane);
      levels[n].read(level, lane);
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        Pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const A apart = less(wide(x[n][u].value[i]), mean[i]);
          out.value[i] = narrow<T>(scale[i] * behind[u].of(i) - (apart * slope[i] + level[i]));
        }
        const int64_t to = row + int64_t{u} * shape.height();
        store<whole>(sides.of[n].dx + to * shape.channels + at.channel, out, at.left);
      }
    }
  };
  each_rows<true, whole, kAtOnce<N>>(shape, at.row, rows_from);
}

// The call of one of them alone.
template <int N>
inline RelayWgradNormCall of_side(const RelayWgradNormCall& call, int n) {
  static_assert(N >= 2 && N <= kNormOthers + 1);
  if (n == 0) return call;
  const RelayWgradNormOther& o = call.others[n - 1];
  RelayWgradNormCall one = call;
  one.x = o.x, one.gamma = o.gamma, one.beta = o.beta, one.mean = o.mean, one.rstd = o.rstd;
  one.running_mean = o.running_mean, one.running_var = o.running_var;
  one.out = o.out, one.first = o.first, one.second = o.second;
  one.new_mean = o.new_mean, one.new_var = o.new_var;
  return one;
}

template <typename T, int N>
inline Sides<T, N> sides_of(const RelayWgradNormCall& call, bool forward) {
  using A = Sum<T>;
  Sides<T, N> sides;
  for (int n = 0; n < N; ++n) {
    const RelayWgradNormCall one = of_side<N>(call, n);
    auto *first = static_cast<A*>(one.first), *second = static_cast<A*>(one.second);
    sides.of[n] = {static_cast<const T*>(one.x),
                   static_cast<const A*>(one.gamma),
                   static_cast<const A*>(one.beta),
                   forward ? first : static_cast<const A*>(one.mean),
                   forward ? second : static_cast<const A*>(one.rstd),
                   forward ? nullptr : first,
                   forward ? nullptr : second,
                   static_cast<T*>(one.out)};
  }
  return sides;
}

// Whether accesses of 16 bytes fit, of all of them.
template <typename T, int N>
inline bool is_whole_added(const RelayWgradNormCall& call) {
  bool whole = is_whole<T>(call.channels, {call.x, call.dy, call.dy2, call.out});
  for (int n = 1; n < N; ++n) {
    const RelayWgradNormCall one = of_side<N>(call, n);
    whole = whole && is_whole<T>(call.channels, {one.x, one.out});
  }
  return whole;
}

template <typename T, int N, bool whole, Activation act>
cudaError_t forward_added_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V>(call, sizeof(A));
  auto* const partial = static_cast<A*>(call.workspace);
  const auto sides = sides_of<T, N>(call, true);
  for (int n = 0; n < N; ++n) {
    cudaError_t error = launch_moments<T, whole>(sides.of[n].x, partial, shape, stream);
    if (error != cudaSuccess) return error;
    error = finish_statistics(partial, statistics_of<T>(of_side<N>(call, n)), shape, stream);
    if (error != cudaSuccess) return error;
  }
  const auto last = writing(shape, call);
  return launch(normalized_added<T, V, N, whole, act>, grid_of(last), kThreads, stream, sides,
                static_cast<T*>(call.out), static_cast<uint8_t*>(call.new_mask),
                static_cast<A>(call.alpha), last);
}

template <typename T, Activation act, int N, bool summed>
int forward_added(const RelayWgradNormCall& call, cudaStream_t stream) {
  static_assert(!summed);
  return finished(is_whole_added<T, N>(call) ? forward_added_by<T, N, true, act>(call, stream)
                                             : forward_added_by<T, N, false, act>(call, stream));
}

template <typename T, int N, bool whole, bool summed>
cudaError_t backward_added_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V>(call, sizeof(A), N + 1);
  const auto *dy = static_cast<const T*>(call.dy), *dy2 = static_cast<const T*>(call.dy2);
  const auto* mask = static_cast<const uint8_t*>(call.mask);
  auto* const partial = static_cast<A*>(call.workspace);
  const auto sides = sides_of<T, N>(call, false);
  cudaError_t error = launch(sums_of_added<T, V, N, whole, summed>, grid_of(shape), kThreads, stream, dy,
                             dy2, mask, sides, partial, shape);
  if (error != cudaSuccess) return error;
  error = launch(parameters_of_added<T, N>, few_grid(shape), kFew * kParts, stream,
                 static_cast<const A*>(partial), sides, shape);
  if (error != cudaSuccess) return error;
  const auto last = writing(shape, call);
  return launch(gradient_of_added<T, V, N, whole, summed>, grid_of(last), kThreads, stream, dy, dy2, mask,
                sides, last);
}

// The activation's bits are all that is left of it.
template <typename T, Activation act, int N, bool summed>
int backward_added(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(is_whole_added<T, N>(call) ? backward_added_by<T, N, true, summed>(call, stream)
                                             : backward_added_by<T, N, false, summed>(call, stream));
}

}  // namespace
