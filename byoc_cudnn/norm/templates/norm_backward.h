// ---- backward: both sums in one pass, then the gradient in another --------------------------------------
//
// With dy' what comes through the activation, m rows and n = (x - mean) rstd:
//   dbeta = sum(dy'),  dgamma = sum(dy' n),  dx = gamma rstd (dy' - dbeta / m - n dgamma / m).
// Of groups m is a group's values of an image, and gamma stands within the sums of dx:
//   dx = rstd (gamma dy' - sum(gamma dy') / m - n sum(gamma dy' n) / m).

namespace {

// Where dy' comes from: dy itself; dy and the activation of what x gives; dy and the stored y, or its
// bits.  Of the last two the first pass writes dy', which is the residual's gradient, and the second
// reads it; with `summed` a second gradient is added to dy before, and the sum rounded as if apart.  It is
// what the first pass writes where x gives the mask.  With `sliced` both are channels of other tensors, and
// the sum, which is not written, is made in both passes; `within` x is.  With `skip` another tensor is
// added to dx.
enum class Mask { kNone, kComputed, kStored, kBits };

// Whether the second pass reads what the first one wrote, and whether that is behind the activation.
template <Mask mask>
constexpr bool kIsBehind = mask == Mask::kStored || mask == Mask::kBits;
template <Mask mask, bool summed, bool sliced>
constexpr bool kIsWritten = kIsBehind<mask> || (summed && !sliced);

// dy' of a pack, and what it adds to both sums; where the mask is stored, g becomes dy'.
template <Activation act, Mask mask, bool summed, typename T, int V, typename A>
__device__ inline void add_gradient(Pack<T, V>& g, const Pack<T, V>& more, const Pack<T, V>& x,
                                    const Pack<T, V>& y, uint8_t bits, const A (&mean)[V],
                                    const A (&scale)[V], const A (&shift)[V], A alpha, A (&plain)[V],
                                    A (&weighted)[V]) {
  if constexpr (summed) add(g, more);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A apart = less(wide(x.value[i]), mean[i]);
    A d = wide(g.value[i]);
    if constexpr (mask == Mask::kComputed) {
      d = before<act, T>(d, times_plus(apart, scale[i], shift[i]), alpha);
    } else if constexpr (mask != Mask::kNone) {
      if (mask == Mask::kStored ? !passes<act>(wide(y.value[i])) : (bits >> i & 1) == 0) {
        d = held_back<act>(d, alpha);
        g.value[i] = narrow<T>(d);
      }
    }
    plain[i] += d;
    weighted[i] = times_plus(d, apart, weighted[i]);
  }
}

// dx of a pack: level and slope are the sums' shares.
template <Activation act, Mask mask, bool skip, typename T, int V, typename A>
__device__ inline Pack<T, V> gradient_of(const Pack<T, V>& g, const Pack<T, V>& x, const Pack<T, V>& beside,
                                         const A (&mean)[V], const A (&scale)[V], const A (&shift)[V],
                                         const A (&slope)[V], const A (&level)[V], A alpha) {
  Pack<T, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A apart = less(wide(x.value[i]), mean[i]);
    A d = wide(g.value[i]);
    if constexpr (mask == Mask::kComputed) {
      d = before<act, T>(d, times_plus(apart, scale[i], shift[i]), alpha);
    }
    A v = scale[i] * d - (apart * slope[i] + level[i]);
    if constexpr (skip) v += wide(beside.value[i]);
    out.value[i] = narrow<T>(v);
  }
  return out;
}

// Of all rows of a block.
template <int V, typename A, typename S>
__device__ inline void write_sums(const A (&sums)[2][kThreads * V], A* partial, const S& shape) {
  const int stride = shape.width * V;
  for (int which = threadIdx.x; which < 2 * stride; which += kThreads) {
    const int pass = which / stride, c = which % stride;
    const int64_t channel = shape.tile() * stride + c;
    if (channel >= shape.channels) continue;
    A sum = 0;
    for (int row = 0; row < shape.height(); ++row) sum += sums[pass][row * stride + c];
    partial[shape.partial_at(shape.image(), blockIdx.y, 2) + pass * shape.channels + channel] = sum;
  }
}

template <typename T, int V, bool whole, Activation act, Mask mask, bool summed, bool sliced, bool within,
          typename S>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_sums(const T* dy, const T* dy2, const T* __restrict__ x, const T* y,
                  const uint8_t* __restrict__ bits, const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                  const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                  T* written, Sum<T>* __restrict__ partial, Sum<T> alpha,
                  int64_t dy_stride, int64_t dy2_stride, int64_t x_stride, S shape) {
  using A = Sum<T>;
  constexpr bool kStored = mask == Mask::kStored, kBits = mask == Mask::kBits;
  __shared__ A sums[2][kThreads * V];
  begin();
  const Place at(shape, V);
  const Lanes<sliced> gradients(shape, at, dy_stride), others(shape, at, dy2_stride);
  const Lanes<within> reads(shape, at, x_stride);
  constexpr int kRows = mask == Mask::kComputed && summed ? kUnroll / 2 : kUnroll;
  A plain[V] = {}, weighted[V] = {};
  if (at.left > 0) {
    A middle[V], scale[V], shift[V];
    load_statistics(middle, mean, at, shape);
    if constexpr (mask == Mask::kComputed) {
      A spread[V];
      load_columns(scale, gamma, at, shape);
      load_statistics(spread, rstd, at, shape);
      load_columns(shift, beta, at, shape);
#pragma unroll
      for (int i = 0; i < V; ++i) scale[i] = times(scale[i], spread[i]);
    }
    auto add = [&](int64_t row, Pack<T, V>& g, const Pack<T, V>& more, const Pack<T, V>& a,
                   const Pack<T, V>& b, uint8_t through) {
      add_gradient<act, mask, summed>(g, more, a, b, through, middle, scale, shift, alpha, plain,
                                      weighted);
      if constexpr (kIsWritten<mask, summed, sliced>) {
        store<whole>(written + row * shape.channels + at.channel, g, at.left);
      }
    };
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t first) {
#pragma unroll 1
          for (int part = 0; part < kUnroll; part += kRows) {
            Pack<T, V> g[kRows], more[kRows], a[kRows], b[kRows];
            uint8_t through[kRows] = {};
#pragma unroll
            for (int u = 0; u < kRows; ++u) {
              const int64_t row = first + int64_t{part + u} * shape.height();
              const int64_t i = row * shape.channels + at.channel;
              load_own<whole>(g[u], dy + gradients.at(row), at.left);
              if constexpr (summed) load_own<whole>(more[u], dy2 + others.at(row), at.left);
              load<whole>(a[u], x + reads.at(row), at.left);
              if constexpr (kStored) load_own<whole>(b[u], y + i, at.left);
              if constexpr (kBits) through[u] = __ldg(bits + row * shape.packs + at.pack);
            }
#pragma unroll
            for (int u = 0; u < kRows; ++u) {
              add(first + int64_t{part + u} * shape.height(), g[u], more[u], a[u], b[u], through[u]);
            }
          }
        },
        [&](int64_t row) {
          const int64_t i = row * shape.channels + at.channel;
          Pack<T, V> g, more, a, b;
          uint8_t through = 0;
          load_own<whole>(g, dy + gradients.at(row), at.left);
          if constexpr (summed) load_own<whole>(more, dy2 + others.at(row), at.left);
          load<whole>(a, x + reads.at(row), at.left);
          if constexpr (kStored) load_own<whole>(b, y + i, at.left);
          if constexpr (kBits) through = __ldg(bits + row * shape.packs + at.pack);
          add(row, g, more, a, b, through);
        });
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[0][threadIdx.x * V + i] = plain[i];
    sums[1][threadIdx.x * V + i] = weighted[i];
  }
  __syncthreads();
  write_sums<V>(sums, partial, shape);
}

// Both sums, for the channel of a thread: of all blocks, and of all rows that are one there.
template <typename A, typename S>
__device__ inline Terms<2, A> over_folds(const A* from, const S& shape) {
  return over_parts_of<2, A>(shape.parts(), [&](int i) {
    const A* const at = from + shape.part_at(shape.part(i), 2);
    return Terms<2, A>{at[0], at[shape.channels]};
  });
}

template <typename A, typename S>
__global__ void __launch_bounds__(kFew* kParts, 1)
    gradient_of_parameters(const A* __restrict__ partial, const A* __restrict__ rstd,
                           A* __restrict__ dgamma, A* __restrict__ dbeta, S shape) {
  begin();
  const FewPlace at(shape);
  const A spread = rstd[at.from];
  const auto sums = over_folds(partial + at.from, shape);
  if (!at.writes) return;
  dbeta[at.channel] = sums.of[0];
  dgamma[at.channel] = sums.of[1] * spread;
}

// Of each channel of an image, what `gradient_of_parameters` makes of a batch's: in the place of its
// first block's sums.
template <typename A, typename S>
__global__ void __launch_bounds__(kFew* kParts, 1)
    sums_of_images(A* __restrict__ partial, const A* __restrict__ rstd, S shape) {
  begin();
  const FewPlace at(shape);
  A* const from = partial + shape.partial_at(at.image, 0, 2) + at.from;
  const A spread = rstd[shape.statistic_at(at.image, at.from)];
  const auto sums = over_folds(static_cast<const A*>(from), shape);
  if (!at.writes) return;
  from[0] = sums.of[0];
  from[shape.channels] = sums.of[1] * spread;
}

template <typename A, typename S>
__global__ void __launch_bounds__(kFew* kParts, 1)
    over_images(const A* __restrict__ partial, A* __restrict__ dgamma, A* __restrict__ dbeta,
                S shape) {
  begin();
  const FewPlace at(shape);
  const auto sums = over_parts_of<2, A>(static_cast<int>(shape.images), [&](int image) {
    const A* const from = partial + shape.partial_at(image, 0, 2) + at.from;
    return Terms<2, A>{from[0], from[shape.channels]};
  });
  if (!at.writes) return;
  dbeta[at.channel] = sums.of[0];
  dgamma[at.channel] = sums.of[1];
}

// The sums of gamma times both, over the channels of a group, in the place of each of them.
template <typename A, typename S>
__global__ void __launch_bounds__(32 * kGroupWarps)
    sums_of_groups(A* __restrict__ partial, const A* __restrict__ gamma, S shape) {
  begin();
  const GroupPlace at(shape);
  A* const from = partial + (at.there ? shape.partial_at(at.image, 0, 2) : 0);
  const A plain = at.sum<A>(shape, [&](int64_t c) { return gamma[c] * from[c]; });
  const A weighted =
      at.sum<A>(shape, [&](int64_t c) { return gamma[c] * from[shape.channels + c]; });
  for (int64_t c = threadIdx.x % 32; at.there && c < shape.group; c += 32) {
    from[at.first + c] = plain;
    from[shape.channels + at.first + c] = weighted;
  }
}

// From the sums of blocks to the parameters' gradients, and to what dx is made of.
template <typename A, typename S>
cudaError_t finish_gradients(A* partial, const A* gamma, const A* rstd, A* dgamma, A* dbeta,
                             const S& shape, cudaStream_t stream) {
  const A* const sums = partial;
  if constexpr (S::kGrouped) {
    cudaError_t error = launch(sums_of_images<A, S>, few_grid(shape, shape.images), kFew * kParts, stream,
                               partial, rstd, shape);
    if (error != cudaSuccess) return error;
    error = launch(over_images<A, S>, few_grid(shape), kFew * kParts, stream, sums, dgamma, dbeta, shape);
    if (error != cudaSuccess || shape.is_single()) return error;
    return launch(sums_of_groups<A, S>, group_grid(shape), 32 * kGroupWarps, stream, partial, gamma,
                  shape);
  } else {
    return launch(gradient_of_parameters<A, S>, few_grid(shape), kFew * kParts, stream, sums, rstd,
                  dgamma, dbeta, shape);
  }
}

// What dx is made of, for the channels of a thread: `dgamma` and `dbeta` of a batch, or of an image what
// is in their place, `apart` values from one image to the next.
template <Mask mask, int V, typename A, typename S>
__device__ inline void load_slopes(A (&middle)[V], A (&scale)[V], A (&shift)[V], A (&slope)[V],
                                   A (&level)[V], const A* gamma, const A* beta, const A* mean,
                                   const A* rstd, const A* dgamma, const A* dbeta, int64_t apart,
                                   const Place& at, const S& shape) {
  A spread[V];
  load_statistics(middle, mean, at, shape);
  load_columns(scale, gamma, at, shape);
  load_statistics(spread, rstd, at, shape);
  load_columns(slope, dgamma + at.image * apart, at, shape);
  load_columns(level, dbeta + at.image * apart, at, shape);
  if constexpr (mask == Mask::kComputed) load_columns(shift, beta, at, shape);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A each = A(1) / (A(shape.rows * shape.folds()) * A(S::kGrouped ? shape.group : 1));
    scale[i] = times(scale[i], spread[i]);
    const A factor = shape.is_single() ? scale[i] : spread[i];
    slope[i] = factor * spread[i] * (slope[i] * each);
    level[i] = factor * (level[i] * each);
  }
}

template <typename T, int V, bool whole, Activation act, Mask mask, bool summed, bool sliced, bool within,
          bool skip, typename S>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient(const T* dy, const T* dy2, const T* x, const T* beside,
             const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
             const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ dgamma,
             const Sum<T>* __restrict__ dbeta, int64_t apart, T* dx, Sum<T> alpha,
             int64_t dy_stride, int64_t dy2_stride, int64_t x_stride, S shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  const Lanes<sliced> gradients(shape, at, dy_stride), others(shape, at, dy2_stride);
  const Lanes<within> reads(shape, at, x_stride);
  A middle[V], scale[V], shift[V], slope[V], level[V];
  load_slopes<mask>(middle, scale, shift, slope, level, gamma, beta, mean, rstd, dgamma, dbeta,
                    apart, at, shape);
  constexpr int kRows = skip ? kUnroll / 2 : kUnroll;  // whose loads are under way together
  auto write = [&](int64_t i, Pack<T, V>& g, const Pack<T, V>& more, const Pack<T, V>& a,
                   const Pack<T, V>& b) {
    if constexpr (summed) add(g, more);
    store<whole>(dx + i,
                 gradient_of<act, mask, skip>(g, a, b, middle, scale, shift, slope, level, alpha), at.left);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t first) {
#pragma unroll 1
        for (int part = 0; part < kUnroll; part += kRows) {
          Pack<T, V> g[kRows], more[kRows], a[kRows], b[kRows];
#pragma unroll
          for (int u = 0; u < kRows; ++u) {
            const int64_t row = first + int64_t{part + u} * shape.height();
            load_own<whole>(g[u], dy + gradients.at(row), at.left);
            if constexpr (summed) load_own<whole>(more[u], dy2 + others.at(row), at.left);
            load_own<whole>(a[u], x + reads.at(row), at.left);
            if constexpr (skip) load_own<whole>(b[u], beside + row * shape.channels + at.channel, at.left);
          }
#pragma unroll
          for (int u = 0; u < kRows; ++u) {
            write((first + int64_t{part + u} * shape.height()) * shape.channels + at.channel, g[u],
                  more[u], a[u], b[u]);
          }
        }
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> g, more, a, b;
        load_own<whole>(g, dy + gradients.at(row), at.left);
        if constexpr (summed) load_own<whole>(more, dy2 + others.at(row), at.left);
        load_own<whole>(a, x + reads.at(row), at.left);
        if constexpr (skip) load_own<whole>(b, beside + i, at.left);
        write(i, g, more, a, b);
      });
}

template <typename T, bool whole, Activation act, Mask mask, bool summed, bool sliced, bool within,
          bool skip, typename S>
cudaError_t backward_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V, S>(call, sizeof(A));
  const auto *x = static_cast<const T*>(call.x), *dy = static_cast<const T*>(call.dy);
  const auto *gamma = static_cast<const A*>(call.gamma), *beta = static_cast<const A*>(call.beta);
  const auto *mean = static_cast<const A*>(call.mean), *rstd = static_cast<const A*>(call.rstd);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second);
  auto* const partial = static_cast<A*>(call.workspace);
  auto* const written = static_cast<T*>(kIsBehind<mask> ? call.dresidual : call.total);
  const A alpha = static_cast<A>(call.alpha);
  cudaError_t error =
      launch(gradient_sums<T, V, whole, act, mask, summed, sliced, within, S>, grid_of(shape), kThreads,
             stream, dy, static_cast<const T*>(call.dy2), x, static_cast<const T*>(call.y),
             static_cast<const uint8_t*>(call.mask), gamma, beta, mean, rstd, written, partial, alpha,
             call.dy_stride, call.dy2_stride, call.x_stride, shape);
  if (error != cudaSuccess) return error;
  error = finish_gradients(partial, gamma, rstd, dgamma, dbeta, shape, stream);
  if (error != cudaSuccess) return error;
  constexpr bool kBehind = kIsBehind<mask>, kWritten = kIsWritten<mask, summed, sliced>;
  constexpr Mask kLater = kBehind ? Mask::kNone : mask;
  const A* const slopes = S::kGrouped ? partial + shape.channels : dgamma;
  const A* const levels = S::kGrouped ? partial : dbeta;
  const int64_t apart = 2 * shape.blocks * shape.channels;
  const auto last = writing(shape, call);
  constexpr Activation kAct = kBehind ? Activation::kNone : act;
  return launch(gradient<T, V, whole, kAct, kLater, summed && !kWritten, sliced, within, skip, S>,
                grid_of(last), kThreads, stream, kWritten ? static_cast<const T*>(written) : dy,
                static_cast<const T*>(call.dy2), x, static_cast<const T*>(call.skip), gamma, beta, mean, rstd, slopes, levels, apart,
                static_cast<T*>(call.out), alpha, call.dy_stride, call.dy2_stride, call.x_stride, last);
}

// Both sums of a channel.
template <typename A>
struct Two {
  A plain, weighted;
};

// A block has its rows of dy and x in shared memory from the sums to the gradient.
template <typename T, Activation act, Mask mask, bool summed, bool sliced, bool within, bool skip>
__global__ void __launch_bounds__(kMany, 1)
    gradient_together(const T* dy, const T* dy2, const T* x, const T* beside,
                      const T* y, const uint8_t* __restrict__ bits,
                      const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                      const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                      T* written, T* dx, Sum<T>* __restrict__ dgamma,
                      Sum<T>* __restrict__ dbeta, Sum<T> alpha, Sum<T>* __restrict__ partial,
                      int64_t dy_stride, int64_t dy2_stride, int64_t x_stride, Together z) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  constexpr bool kBehind = kIsBehind<mask>;
  constexpr Mask kLater = kBehind ? Mask::kNone : mask;
  extern __shared__ uint4 kept[];
  uint4* const kept_x = kept + z.turns * kMany;
  const Seat at(z);
  const int turns = z.turns_of<V>(at);
  for (int k = 0; k < turns; ++k) {
    keep(kept, k, dy + z.offset<V>(at, k, sliced ? dy_stride : z.channels));
    keep(kept_x, k, x + z.offset<V>(at, k, within ? x_stride : z.channels));
    kept_so_far();
  }
  const int64_t mine = (int64_t{at.tile} * z.width + at.lane) * V, left = z.channels - mine;
  A middle[V], scale[V], shift[V], spread[V], plain[V] = {}, weighted[V] = {};
  load_channels(middle, mean + mine, left);
  load_channels(scale, gamma + mine, left);
  load_channels(spread, rstd + mine, left);
  if constexpr (mask == Mask::kComputed) load_channels(shift, beta + mine, left);
#pragma unroll
  for (int i = 0; i < V; ++i) scale[i] = times(scale[i], spread[i]);
  for (int first = 0; first < turns; first += kBatch) {
    Pack<T, V> more[kBatch], b[kBatch];
    uint8_t through[kBatch] = {};
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (first + u >= turns) break;
      const int64_t i = z.offset<V>(at, first + u);
      if constexpr (summed) {
        const int64_t stride = sliced ? dy2_stride : z.channels;
        load_own<true>(more[u], dy2 + z.offset<V>(at, first + u, stride), V);
      }
      if constexpr (mask == Mask::kStored) load_own<true>(b[u], y + i, V);
      if constexpr (mask == Mask::kBits) through[u] = __ldg(bits + i / V);
    }
    wait_for_kept(turns - first - kBatch);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int k = first + u;
      if (k >= turns) break;
      Pack<T, V> g, a;
      read_kept(g, kept, k);
      read_kept(a, kept_x, k);
      add_gradient<act, mask, summed>(g, more[u], a, b[u], through[u], middle, scale, shift, alpha,
                                      plain, weighted);
      if constexpr (kIsWritten<mask, summed, sliced>) store<true>(written + z.offset<V>(at, k), g, V);
      if constexpr (kBehind || summed) write_kept(g, kept, k);
    }
  }
  for (int step = z.width; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      plain[i] += __shfl_xor_sync(kAll, plain[i], step);
      weighted[i] += __shfl_xor_sync(kAll, weighted[i], step);
    }
  }
  Sums<A, V>& shared = *reinterpret_cast<Sums<A, V>*>(kept + 2 * z.turns * kMany);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < z.width) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      shared.of[0][warp][lane * V + i] = plain[i];
      shared.of[1][warp][lane * V + i] = weighted[i];
    }
  }
  __syncthreads();
  const int channels = z.width * V, c = threadIdx.x % channels, part = threadIdx.x / channels;
  const int64_t channel = int64_t{at.tile} * channels + c;
  const bool there = channel < z.channels;
  for (int which = part; which < 2 && there; which += kMany / channels) {
    A sum = 0;
    for (int w = 0; w < kMany / 32; ++w) sum += shared.of[which][w][c];
    partial[(2 * at.block + which) * z.channels + channel] = sum;
  }
  // What the sums are needed for is on the way while blocks wait for each other.
  const int64_t from = there ? channel : 0;
  const A r = rstd[from], factor = times(gamma[from], r);
  cooperative_groups::this_grid().sync();
  const int parts = kMany / channels;
  Two<A> own = {};
  each_block(
      part, parts, z.blocks, Two<A>{},
      [&](int b) {
        const A* const at = partial + int64_t{2} * b * z.channels + from;
        return Two<A>{__ldcg(at), __ldcg(at + z.channels)};
      },
      [&](const Two<A> (&blocks)[kBlocksAtOnce]) {
#pragma unroll
        for (int k = 0; k < kBlocksAtOnce; ++k) own.plain += blocks[k].plain, own.weighted += blocks[k].weighted;
      });
  const A all = over_parts(shared, own.plain, c, part, parts);
  const A all_weighted = over_parts(shared, own.weighted, c, part, parts);
  if (part == 0 && there) {
    const A each = A(1) / A(z.rows), slope = all_weighted * r;
    if (at.block == 0) {
      dbeta[channel] = all;
      dgamma[channel] = slope;
    }
    shared.of[0][0][c] = factor * r * (slope * each);
    shared.of[0][1][c] = factor * (all * each);
  }
  __syncthreads();
  A slope[V], level[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    slope[i] = shared.of[0][0][at.lane * V + i];
    level[i] = shared.of[0][1][at.lane * V + i];
  }
#pragma unroll 2
  for (int k = 0; k < turns; ++k) {
    Pack<T, V> g, a, b;
    if constexpr (skip) load_own<true>(b, beside + z.offset<V>(at, k), V);
    read_kept(g, kept, k);
    read_kept(a, kept_x, k);
    store<true>(dx + z.offset<V>(at, k),
                gradient_of<kBehind ? Activation::kNone : act, kLater, skip>(g, a, b, middle, scale, shift,
                                                                             slope, level, alpha),
                V);
  }
}

template <typename T, Activation act, Mask mask, bool summed, bool grouped, bool sliced, bool within,
          bool skip>
int backward(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  // Of what is sliced: whether a pack lies in one row, at a multiple of itself.
  const bool packs = !sliced || (call.channels % kVector<T> == 0 && call.dy_stride % kVector<T> == 0 &&
                                 call.dy2_stride % kVector<T> == 0);
  const auto fits = [&](const RelayWgradNormCall& one) {
    return packs &&
           is_whole<T>(one.channels, {call.x, call.dy, call.dy2, call.y, call.dresidual, call.out, call.skip,
                                      call.total});
  };
  if (fits(call)) {
    const Together z = together_of<T>(call, 2);
    const cudaError_t error = launch_together(
        gradient_together<T, act, mask, summed, sliced, within, skip>, z, 2, sizeof(Sums<A, kVector<T>>),
        stream, static_cast<const T*>(call.dy), static_cast<const T*>(call.dy2),
        static_cast<const T*>(call.x), static_cast<const T*>(call.skip), static_cast<const T*>(call.y),
        static_cast<const uint8_t*>(call.mask), static_cast<const A*>(call.gamma),
        static_cast<const A*>(call.beta), static_cast<const A*>(call.mean),
        static_cast<const A*>(call.rstd),
        static_cast<T*>(kIsBehind<mask> ? call.dresidual : call.total), static_cast<T*>(call.out), static_cast<A*>(call.first), static_cast<A*>(call.second),
        static_cast<A>(call.alpha), static_cast<A*>(call.workspace), call.dy_stride,
        call.dy2_stride, call.x_stride, z);
    if (error != cudaErrorNotSupported) return finished(error);
  }
  const RelayWgradNormCall wide = packs ? folded<T>(call) : side_by_side(call, 1);
  using Whole = Shape<grouped, false>;
  using Folded = Shape<grouped, true>;
  if (!fits(wide)) {
    return finished(
        backward_by<T, false, act, mask, summed, sliced, within, skip, Folded>(wide, stream));
  }
  return finished(
      wide.fold > 1 ? backward_by<T, true, act, mask, summed, sliced, within, skip, Folded>(wide, stream)
                    : backward_by<T, true, act, mask, summed, sliced, within, skip, Whole>(wide, stream));
}

}  // namespace
