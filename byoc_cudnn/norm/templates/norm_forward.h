// ---- forward: moments, statistics, the result ---------------------------------------------------------
//
// Moments are means and sums of squared distances from them.  Two groups merge by
//   mean = mean_a + (mean_b - mean_a) n_b / n,  m2 = m2_a + m2_b + (mean_b - mean_a)^2 n_a n_b / n,
// many at once by mean = sum(n_i mean_i) / n,  m2 = sum(m2_i + n_i (mean_i - mean)^2): nothing large is
// taken from anything large.

namespace {

// Of what a thread has seen.
template <typename T, int V>
struct Moments {
  Sum<T> mean[V] = {}, m2[V] = {};
  int count = 0;

  template <int N>
  __device__ void add(const Pack<T, V> (&rows)[N]) {
    using A = Sum<T>;
    const A share = A(N) / A(count + N), both = share * A(count);
    count += N;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A sum = wide(rows[0].value[i]);
#pragma unroll
      for (int u = 1; u < N; ++u) sum += wide(rows[u].value[i]);
      const A middle = sum * (A(1) / N), apart = middle - mean[i];
      A square = m2[i] + apart * apart * both;
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const A d = wide(rows[u].value[i]) - middle;
        square += d * d;
      }
      mean[i] += apart * share;
      m2[i] = square;
    }
  }

  // Of the first so many rows, at least one.
  template <int N>
  __device__ void add_first(const Pack<T, V> (&rows)[N], int number) {
    using A = Sum<T>;
    const A share = A(number) / A(count + number), both = share * A(count), each = A(1) / A(number);
    count += number;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A sum = wide(rows[0].value[i]);
#pragma unroll
      for (int u = 1; u < N; ++u) sum += u < number ? wide(rows[u].value[i]) : A(0);
      const A middle = sum * each, apart = middle - mean[i];
      A square = m2[i] + apart * apart * both;
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const A d = u < number ? wide(rows[u].value[i]) - middle : A(0);
        square += d * d;
      }
      mean[i] += apart * share;
      m2[i] = square;
    }
  }
};

// Of all rows of a block; all of its threads call it.
template <typename T, int V, typename S>
__device__ inline void write_moments(const Moments<T, V>& seen, Sum<T>* partial, const Place& at,
                                     const S& shape) {
  using A = Sum<T>;
  __shared__ A means[kThreads * V], squares[kThreads * V];
  __shared__ int counts[kThreads];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    means[threadIdx.x * V + i] = seen.mean[i];
    squares[threadIdx.x * V + i] = seen.m2[i];
  }
  counts[threadIdx.x] = seen.count;
  __syncthreads();
  const int stride = shape.width * V;
  const A all = A(shape.rows_of(blockIdx.y));
  for (int c = threadIdx.x; c < stride; c += kThreads) {
    const int64_t channel = shape.tile() * stride + c;
    if (channel >= shape.channels) break;
    A sum = 0, square = 0;
    for (int row = 0; row < shape.height(); ++row) {
      sum += A(counts[row * shape.width + c / V]) * means[row * stride + c];
    }
    const A middle = sum / all;
    for (int row = 0; row < shape.height(); ++row) {
      const A apart = means[row * stride + c] - middle;
      square += squares[row * stride + c] + A(counts[row * shape.width + c / V]) * apart * apart;
    }
    A* const to = partial + shape.partial_at(at.image, blockIdx.y, 2) + channel;
    to[0] = middle;
    to[shape.channels] = square;
  }
}

// `within`: x is channels of another tensor, whose rows are `stride` apart.  `summed`: what is looked at is
// the sum of x and `more`, which is written, perhaps in the place of either.
template <typename T, int V, bool whole, typename S, bool within = false, bool summed = false>
__global__ void __launch_bounds__(kThreads, kResident)
    moments(const T* x, const T* more, T* total, Sum<T>* __restrict__ partial, int64_t stride, S shape) {
  begin();
  const Place at(shape, V);
  const Lanes<within> reads(shape, at, stride);
  Moments<T, V> seen;
  if (at.channel < shape.channels) {
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t first) {
          Pack<T, V> rows[kUnroll];
          if constexpr (summed) {
            Pack<T, V> others[kUnroll];
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
              const int64_t i = reads.at(first + int64_t{u} * shape.height());
              load_own<whole>(rows[u], x + i, at.left);
              load_own<whole>(others[u], more + i, at.left);
            }
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
              add(rows[u], others[u]);
              store<whole>(total + reads.at(first + int64_t{u} * shape.height()), rows[u], at.left);
            }
          } else {
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
              load<whole>(rows[u], x + reads.at(first + int64_t{u} * shape.height()), at.left);
            }
          }
          seen.add(rows);
        },
        [&](int64_t row) {
          Pack<T, V> one[1];
          if constexpr (summed) {
            Pack<T, V> other;
            load_own<whole>(one[0], x + reads.at(row), at.left);
            load_own<whole>(other, more + reads.at(row), at.left);
            add(one[0], other);
            store<whole>(total + reads.at(row), one[0], at.left);
          } else {
            load<whole>(one[0], x + reads.at(row), at.left);
          }
          seen.add(one);
        });
  }
  write_moments(seen, partial, at, shape);
}

// Of a tensor by itself.
template <typename T, bool whole, typename S>
cudaError_t launch_moments(const T* x, Sum<T>* partial, const S& shape, cudaStream_t stream) {
  return launch(moments<T, kVector<T>, whole, S>, grid_of(shape), kThreads, stream, x,
                static_cast<const T*>(nullptr), static_cast<T*>(nullptr), partial, int64_t{0}, shape);
}

template <typename A>
struct Statistics {
  A epsilon, momentum;
  bool unbiased;
  const A *running_mean, *running_var;
  A *mean, *rstd, *new_mean, *new_var;

  struct Running {
    A mean, var;
  };
  // A channel's running statistics, to be read before its own are there; zeros where there are none.
  __device__ Running running(int64_t channel) const {
    if (new_mean == nullptr) return {};
    return {running_mean[channel], running_var[channel]};
  }
  // channel : of a batch; else where a group's are, of which there are no running statistics.
  __device__ void write(int64_t channel, const Running& before, A middle, A var, A n) const {
    mean[channel] = middle;
    rstd[channel] = of(var);
    if (new_mean != nullptr) {
      const A spread = unbiased ? var * n / (n - A(1)) : var;
      new_mean[channel] = (A(1) - momentum) * before.mean + momentum * middle;
      new_var[channel] = (A(1) - momentum) * before.var + momentum * spread;
    }
  }
  __device__ A of(A var) const { return A(1) / sqrt(var + epsilon); }
};

// Moments of so many rows.
template <typename A>
struct Merged {
  A rows, mean, m2;

  // And those of others.
  template <int N>
  __device__ void add(const Merged (&others)[N]) {
    A all = rows, sum = rows * mean, square = m2;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      all += others[k].rows;
      sum += others[k].rows * others[k].mean;
      square += others[k].m2;
    }
    const A middle = sum / all, apart = mean - middle;
    square += rows * apart * apart;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A other = others[k].mean - middle;
      square += others[k].rows * other * other;
    }
    rows = all, mean = middle, m2 = square;
  }
  // Of all threads of a channel, which have `n` rows.
  __device__ Merged over_threads_of(A n) const {
    A sums[1] = {rows * mean};
    over_threads(sums);
    const A middle = sums[0] / n, apart = mean - middle;
    sums[0] = m2 + rows * apart * apart;
    over_threads(sums);
    return {n, middle, sums[0]};
  }
};

// Of each channel of an image.  Where groups have several, the moments take the place of its first
// block's, for `statistics_of_groups`.
template <typename A, typename S>
__global__ void __launch_bounds__(kFew* kParts, 1)
    statistics(A* __restrict__ partial, Statistics<A> s, S shape) {
  begin();
  const FewPlace at(shape);
  A* const from = partial + shape.partial_at(at.image, 0, 2) + at.from;
  const A n = A(shape.rows * shape.folds());
  const int64_t statistic = shape.is_single() ? shape.statistic_at(at.image, at.from) : 0;
  const auto running = s.running(statistic);
  Merged<A> own = {};
  each_part(
      shape.parts(), Merged<A>{},
      [&](int i) {
        const auto part = shape.part(i);
        const A* const at = from + shape.part_at(part, 2);
        return Merged<A>{A(shape.rows_of(part.y)), at[0], at[shape.channels]};
      },
      [&](const auto& parts) { own.add(parts); });
  const Merged<A> all = own.over_threads_of(n);
  if (!at.writes) return;
  if (shape.is_single()) {
    s.write(statistic, running, all.mean, all.m2 / n, n);
  } else {
    from[0] = all.mean;
    from[shape.channels] = all.m2;
  }
}

template <typename A, typename S>
__global__ void __launch_bounds__(32 * kGroupWarps)
    statistics_of_groups(const A* __restrict__ partial, Statistics<A> s, S shape) {
  begin();
  const GroupPlace at(shape);
  const A* const from = partial + (at.there ? shape.partial_at(at.image, 0, 2) : 0);
  const A rows = A(shape.rows), n = rows * A(shape.group);
  const A mean = at.sum<A>(shape, [&](int64_t c) { return from[c]; }) / A(shape.group);
  const A m2 = at.sum<A>(shape, [&](int64_t c) {
    const A apart = from[c] - mean;
    return from[shape.channels + c] + rows * apart * apart;
  });
  if (at.there && threadIdx.x % 32 == 0) s.write(at.group, {}, mean, m2 / n, n);
}

// From the moments of blocks to the statistics.
template <typename A, typename S>
cudaError_t finish_statistics(A* partial, const Statistics<A>& s, const S& shape, cudaStream_t stream) {
  cudaError_t error = launch(statistics<A, S>, few_grid(shape, shape.images), kFew * kParts,
                             stream, partial, s, shape);
  if constexpr (S::kGrouped) {
    if (error != cudaSuccess || shape.is_single()) return error;
    error = launch(statistics_of_groups<A, S>, group_grid(shape), 32 * kGroupWarps, stream,
                   static_cast<const A*>(partial), s, shape);
  }
  return error;
}

// Whether a tensor is added to the result, and where: before the activation, or behind it.
enum class Residual { kNone, kBefore, kAfter };

template <Activation act, Residual residual, typename T, int V, typename A>
__device__ inline Pack<T, V> result(const Pack<T, V>& x, const Pack<T, V>& more, const A (&mean)[V],
                                    const A (&scale)[V], const A (&shift)[V], A alpha) {
  Pack<T, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    A v = times_plus(less(wide(x.value[i]), mean[i]), scale[i], shift[i]);
    if constexpr (residual == Residual::kBefore) v += wide(more.value[i]);
    v = activated<act, T>(v, alpha);
    if constexpr (residual == Residual::kAfter) v += wide(more.value[i]);
    out.value[i] = narrow<T>(v);
  }
  return out;
}

// `bits`: a byte for each pack goes along, which tells what the activation lets through.  `placed`: y is
// channels of a joined tensor, whose rows are `stride` apart, and is written to `own` too, if that is there.
template <typename T, int V, bool whole, Activation act, Residual residual, bool bits, bool placed,
          bool within, typename S>
__global__ void __launch_bounds__(kThreads, kResident)
    normalized(const T* x, const T* more, const Sum<T>* __restrict__ gamma,
               const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
               const Sum<T>* __restrict__ rstd, T* y, uint8_t* __restrict__ mask,
               Sum<T> alpha, int64_t stride, T* own, int64_t x_stride, S shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  const Lanes<placed> places(shape, at, stride);
  const Lanes<within> reads(shape, at, x_stride);
  A middle[V], scale[V], shift[V], spread[V];
  load_statistics(middle, mean, at, shape);
  load_columns(scale, gamma, at, shape);
  load_statistics(spread, rstd, at, shape);
  load_columns(shift, beta, at, shape);
#pragma unroll
  for (int i = 0; i < V; ++i) scale[i] = times(scale[i], spread[i]);
  auto write = [&](int64_t row, const Pack<T, V>& a, const Pack<T, V>& b) {
    const Pack<T, V> out = result<act, residual>(a, b, middle, scale, shift, alpha);
    store<whole>(y + places.at(row), out, at.left);
    if constexpr (placed) {
      if (own != nullptr) store<whole>(own + row * shape.channels + at.channel, out, at.left);
    }
    if constexpr (bits) mask[row * shape.packs + at.pack] = passing<act>(out);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t first) {
        Pack<T, V> a[kUnroll], b[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t row = first + int64_t{u} * shape.height(), i = row * shape.channels + at.channel;
          load_own<whole>(a[u], x + reads.at(row), at.left);
          if constexpr (residual != Residual::kNone) load_own<whole>(b[u], more + i, at.left);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) write(first + int64_t{u} * shape.height(), a[u], b[u]);
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> a, b;
        load_own<whole>(a, x + reads.at(row), at.left);
        if constexpr (residual != Residual::kNone) load_own<whole>(b, more + i, at.left);
        write(row, a, b);
      });
}

template <typename T>
Statistics<Sum<T>> statistics_of(const RelayWgradNormCall& call) {
  using A = Sum<T>;
  return {static_cast<A>(call.epsilon), static_cast<A>(call.momentum), call.unbiased,
          static_cast<const A*>(call.running_mean), static_cast<const A*>(call.running_var),
          static_cast<A*>(call.first), static_cast<A*>(call.second), static_cast<A*>(call.new_mean),
          static_cast<A*>(call.new_var)};
}

template <typename T, bool whole, Activation act, Residual residual, bool bits, bool placed, bool within,
          bool summed, typename S>
cudaError_t forward_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V, S>(call, sizeof(A));
  const auto* x = static_cast<const T*>(call.x);
  auto* partial = static_cast<A*>(call.workspace);
  const Statistics<A> s = statistics_of<T>(call);
  cudaError_t error =
      launch(moments<T, V, whole, S, within, summed>, grid_of(shape), kThreads, stream, x,
             static_cast<const T*>(call.more), static_cast<T*>(call.total), partial, call.x_stride, shape);
  if (error != cudaSuccess) return error;
  error = finish_statistics(partial, s, shape, stream);
  if (error != cudaSuccess) return error;
  const auto last = writing(shape, call);
  return launch(normalized<T, V, whole, act, residual, bits, placed, within, S>, grid_of(last), kThreads,
                stream, summed ? static_cast<const T*>(call.total) : x,
                static_cast<const T*>(call.residual), static_cast<const A*>(call.gamma),
                static_cast<const A*>(call.beta), static_cast<const A*>(s.mean),
                static_cast<const A*>(s.rstd), static_cast<T*>(call.out),
                static_cast<uint8_t*>(call.new_mask), static_cast<A>(call.alpha), call.out_stride,
                static_cast<T*>(call.own), call.x_stride, last);
}

// A block has its rows of x in shared memory from the first pass to the last; between them all blocks
// wait for each other.
template <typename T, Activation act, Residual residual, bool bits, bool placed, bool within, bool summed>
__global__ void __launch_bounds__(kMany, 1)
    normalized_together(const T* x, const T* added, T* total, const T* more,
                        const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                        Statistics<Sum<T>> s, T* y, uint8_t* __restrict__ mask,
                        Sum<T> alpha, Sum<T>* __restrict__ partial, int64_t stride, T* own,
                        int64_t x_stride, Together z) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  constexpr int kPair = residual == Residual::kNone ? 2 : 4;  // of a thread's rows on the way at once
  extern __shared__ uint4 kept[];
  const Seat at(z);
  const int turns = z.turns_of<V>(at);
  for (int k = 0; k < turns; ++k) {
    keep(kept, k, x + z.offset<V>(at, k, within ? x_stride : z.channels));
    kept_so_far();
  }
  auto sum_up = [&](Pack<T, V>& row, const Pack<T, V>& other, int turn) {
    add(row, other);
    write_kept(row, kept, turn);
    store<true>(total + z.offset<V>(at, turn), row, V);
  };
  Moments<T, V> seen;
  int k = 0;
  for (; k + kBatch <= turns; k += kBatch) {
    Pack<T, V> rows[kBatch], others[kBatch];
#pragma unroll
    for (int u = 0; summed && u < kBatch; ++u) load_own<true>(others[u], added + z.offset<V>(at, k + u), V);
    wait_for_kept(turns - k - kBatch);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      read_kept(rows[u], kept, k + u);
      if constexpr (summed) sum_up(rows[u], others[u], k + u);
    }
    seen.add(rows);
  }
  wait_for_kept(0);
  for (; k < turns; ++k) {
    Pack<T, V> one[1], other;
    read_kept(one[0], kept, k);
    if constexpr (summed) {
      load_own<true>(other, added + z.offset<V>(at, k), V);
      sum_up(one[0], other, k);
    }
    seen.add(one);
  }
  // Rows of a warp, then of the block, then of all blocks.
  Sums<A, V>& shared = *reinterpret_cast<Sums<A, V>*>(kept + z.turns * kMany);
  A count = A(seen.count);
  for (int step = z.width; step < 32; step *= 2) {
    const A other = __shfl_xor_sync(kAll, count, step), all = count + other;
    // The pair merges alike on both sides: the lower lane's is the first.
    const bool upper = threadIdx.x & step;
    const A share = all > A(0) ? (upper ? count : other) / all : A(0);
    const A first = all - (upper ? count : other);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A mean = __shfl_xor_sync(kAll, seen.mean[i], step);
      const A m2 = __shfl_xor_sync(kAll, seen.m2[i], step);
      const A low = upper ? mean : seen.mean[i], apart = upper ? seen.mean[i] - mean : mean - low;
      seen.mean[i] = low + apart * share;
      seen.m2[i] = (upper ? m2 + seen.m2[i] : seen.m2[i] + m2) + apart * apart * (first * share);
    }
    count = all;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < z.width) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      shared.of[0][warp][lane * V + i] = seen.mean[i];
      shared.of[1][warp][lane * V + i] = seen.m2[i];
    }
    if (lane == 0) shared.counts[warp] = count;
  }
  __syncthreads();
  const int channels = z.width * V, c = threadIdx.x % channels, part = threadIdx.x / channels;
  const int64_t channel = int64_t{at.tile} * channels + c;
  const bool there = channel < z.channels;
  if (part == 0 && there) {
    const A all = A(z.rows_of(at.block));
    A sum = 0, m2 = 0;
    for (int w = 0; w < kMany / 32; ++w) sum += shared.counts[w] * shared.of[0][w][c];
    const A mean = sum / all;
    for (int w = 0; w < kMany / 32; ++w) {
      const A apart = shared.of[0][w][c] - mean;
      m2 += shared.of[1][w][c] + shared.counts[w] * apart * apart;
    }
    partial[2 * at.block * z.channels + channel] = mean;
    partial[(2 * at.block + 1) * z.channels + channel] = m2;
  }
  // What the statistics are needed for is on the way while blocks wait for each other.
  const int64_t from = there ? channel : 0;
  const A weight = gamma[from], bias = beta[from];
  const auto running = s.running(from);
  cooperative_groups::this_grid().sync();
  const int parts = kMany / channels;
  const A n = A(z.rows);
  Merged<A> merged = {};
  each_block(
      part, parts, z.blocks, Merged<A>{},
      [&](int b) {
        const A* const at = partial + int64_t{2} * b * z.channels + from;
        return Merged<A>{A(z.rows_of(b)), __ldcg(at), __ldcg(at + z.channels)};
      },
      [&](const auto& blocks) { merged.add(blocks); });
  const A mean = over_parts(shared, merged.rows * merged.mean, c, part, parts) / n;
  const A apart = merged.mean - mean;
  const A var = over_parts(shared, merged.m2 + merged.rows * apart * apart, c, part, parts) / n;
  if (part == 0 && there) {
    if (at.block == 0) s.write(channel, running, mean, var, n);
    shared.of[0][0][c] = mean;
    shared.of[0][1][c] = times(weight, s.of(var));
    shared.of[0][2][c] = bias;
  }
  __syncthreads();
  A middle[V], scale[V], shift[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    middle[i] = shared.of[0][0][at.lane * V + i];
    scale[i] = shared.of[0][1][at.lane * V + i];
    shift[i] = shared.of[0][2][at.lane * V + i];
  }
  for (int first = 0; first < turns; first += kPair) {
    Pack<T, V> more_of[kPair];
#pragma unroll
    for (int u = 0; residual != Residual::kNone && u < kPair; ++u) {
      if (first + u < turns) load_own<true>(more_of[u], more + z.offset<V>(at, first + u), V);
    }
#pragma unroll
    for (int u = 0; u < kPair; ++u) {
      if (first + u >= turns) break;
      const int64_t i = z.offset<V>(at, first + u);
      Pack<T, V> a;
      read_kept(a, kept, first + u);
      const Pack<T, V> out = result<act, residual>(a, more_of[u], middle, scale, shift, alpha);
      store<true>(y + (placed ? z.offset<V>(at, first + u, stride) : i), out, V);
      if constexpr (placed) {
        if (own != nullptr) store<true>(own + i, out, V);
      }
      if constexpr (bits) mask[i / V] = passing<act>(out);
    }
  }
}

// Of what is placed, or within, packs lie in one row of the other tensor, at multiples of themselves: the
// host's matter.
template <typename T, Activation act, Residual residual, bool bits, bool grouped, bool placed, bool within,
          bool summed>
int forward(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  using Whole = Shape<grouped, false>;
  using Folded = Shape<grouped, true>;
  const auto fits = [&](const RelayWgradNormCall& one) {
    return is_whole<T>(one.channels, {call.x, call.more, call.residual, call.out, call.own, call.total});
  };
  if (fits(call)) {
    const Together z = together_of<T>(call, 1);
    const cudaError_t error = launch_together(
        normalized_together<T, act, residual, bits, placed, within, summed>, z, 1,
        sizeof(Sums<A, kVector<T>>), stream, static_cast<const T*>(call.x),
        static_cast<const T*>(call.more), static_cast<T*>(call.total), static_cast<const T*>(call.residual),
        static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta), statistics_of<T>(call),
        static_cast<T*>(call.out), static_cast<uint8_t*>(call.new_mask),
        static_cast<A>(call.alpha), static_cast<A*>(call.workspace), call.out_stride,
        static_cast<T*>(call.own), call.x_stride, z);
    if (error != cudaErrorNotSupported) return finished(error);
  }
  const RelayWgradNormCall wide = folded<T>(call);
  if (!fits(wide)) {
    return finished(
        forward_by<T, false, act, residual, bits, placed, within, summed, Folded>(wide, stream));
  }
  return finished(
      wide.fold > 1 ? forward_by<T, true, act, residual, bits, placed, within, summed, Folded>(wide, stream)
                    : forward_by<T, true, act, residual, bits, placed, within, summed, Whole>(wide, stream));
}

}  // namespace
