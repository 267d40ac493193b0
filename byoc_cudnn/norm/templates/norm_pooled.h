// ---- a normalization that a max pooling follows ---------------------------------------------------------
//
// What is normalized is not written: forward makes it where a window needs it, and backward gathers its
// gradient from the windows' gradients and the index of their maxima.  Every number is rounded where it
// would be stored, so the results have the bits of both apart.

namespace {

using Windows = RelayWgradNormWindows;

constexpr int kBand = 4, kNear = 128, kGathered = 2;
static_assert(kUnroll % kGathered == 0);

template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
__global__ void __launch_bounds__(kNear)
    normalized_pooled(const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                      const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                      const Sum<T>* __restrict__ rstd, T* __restrict__ y, uint8_t* __restrict__ index,
                      Sum<T> alpha, Windows z, int packs) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  begin();
  const unsigned i = blockIdx.x * kNear + threadIdx.x;
  const int q = static_cast<int>(i / static_cast<unsigned>(packs));
  if (q >= z.q) return;
  const int64_t channel = int64_t{i % static_cast<unsigned>(packs)} * V, left = z.c - channel;
  A middle[V], scale[V], shift[V], spread[V];
  load_channels(middle, mean + channel, left);
  load_channels(scale, gamma + channel, left);
  load_channels(spread, rstd + channel, left);
  load_channels(shift, beta + channel, left);
#pragma unroll
  for (int c = 0; c < V; ++c) scale[c] = times(scale[c], spread[c]);
  const int first = static_cast<int>(blockIdx.y) * kBand;
  for (int64_t n = blockIdx.z; n < z.n; n += gridDim.z) {
    const T* const image = x + n * z.h * z.w * z.c + channel;
    for (int p = first; p < first + kBand && p < z.p; ++p) {
      Best<T, V> best;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int row = p * SR - z.top + r;
        Pack<T, V> packs_of_row[S];
        bool there[S];
#pragma unroll
        for (int s = 0; s < S; ++s) {
          const int column = q * SS - z.left + s;
          there[s] = row >= 0 && row < z.h && column >= 0 && column < z.w;
          if (there[s]) {
            load<whole>(packs_of_row[s], image + (int64_t{row} * z.w + column) * z.c,
                                     left);
          }
        }
#pragma unroll
        for (int s = 0; s < S; ++s) {
          if (there[s]) {
            best.see(result<act, Residual::kNone>(packs_of_row[s], packs_of_row[s], middle, scale,
                                                  shift, alpha),
                     r * S + s);
          }
        }
      }
      const int64_t window = ((n * z.p + p) * z.q + q) * z.c + channel;
      store<whole>(y + window, best.value, left);
      store_taps<whole>(index + window, best.taps(), left);
    }
  }
}

// Division by a number that is known when a kernel is launched, of numbers below 2^31.
struct Quotient {
  unsigned by, factor, shift;
  explicit Quotient(int64_t d) : by(static_cast<unsigned>(d)), factor(0), shift(0) {
    while ((uint64_t{1} << shift) < by) ++shift;
    factor = static_cast<unsigned>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - by)) / by + 1);
  }
  __device__ unsigned of(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

struct Pixels {
  Windows z;
  Quotient w, h;
};

// The gradient of what was normalized, at a row.
template <bool whole, int R, int S, int SR, int SS, typename T, int V>
__device__ inline void gathered(Pack<T, V>& g, const T* dy, const uint8_t* index, const Pixels& pixels,
                                int64_t row, int64_t channel) {
  const Windows& z = pixels.z;
  const unsigned line = pixels.w.of(static_cast<unsigned>(row)), n = pixels.h.of(line);
  const int w = static_cast<int>(static_cast<unsigned>(row) - line * pixels.w.by);
  const int h = static_cast<int>(line - n * pixels.h.by);
  gather_from<R, S, SR, SS, whole>(g, dy, z, n, h, w, channel, [&](Taps<V>& taps, int p, int q) {
    load_taps<whole>(taps, index + ((int64_t{n} * z.p + p) * z.q + q) * z.c + channel, z.c - channel);
  });
}

template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
__global__ void __launch_bounds__(kThreads, kResident)
    sums_of_pooled(const T* __restrict__ dy, const uint8_t* __restrict__ index,
                   const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                   const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                   const Sum<T>* __restrict__ rstd, Sum<T>* __restrict__ partial, Sum<T> alpha,
                   Pixels pixels, Plain shape) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  constexpr Mask mask = act == Activation::kNone ? Mask::kNone : Mask::kComputed;
  __shared__ A sums[2][kThreads * V];
  begin();
  const Place at(shape, V);
  A plain[V] = {}, weighted[V] = {};
  if (at.left > 0) {
    A middle[V], scale[V], shift[V], spread[V];
    load_channels(middle, mean + at.channel, at.left);
    load_channels(scale, gamma + at.channel, at.left);
    load_channels(spread, rstd + at.channel, at.left);
    load_channels(shift, beta + at.channel, at.left);
#pragma unroll
    for (int i = 0; i < V; ++i) scale[i] = times(scale[i], spread[i]);
    auto read = [&](Pack<T, V>& g, Pack<T, V>& a, int64_t row) {
      load<whole>(a, x + row * shape.channels + at.channel, at.left);
      gathered<whole, R, S, SR, SS>(g, dy, index, pixels, row, at.channel);
    };
    auto add = [&](Pack<T, V>& g, const Pack<T, V>& a) {
      add_gradient<act, mask, false>(g, g, a, a, 0, middle, scale, shift, alpha, plain, weighted);
    };
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t first) {
#pragma unroll 1
          for (int part = 0; part < kUnroll; part += kGathered) {
            Pack<T, V> g[kGathered], a[kGathered];
#pragma unroll
            for (int u = 0; u < kGathered; ++u) {
              read(g[u], a[u], first + int64_t{part + u} * shape.height());
            }
#pragma unroll
            for (int u = 0; u < kGathered; ++u) add(g[u], a[u]);
          }
        },
        [&](int64_t row) {
          Pack<T, V> g, a;
          read(g, a, row);
          add(g, a);
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

template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_of_pooled(const T* __restrict__ dy, const uint8_t* __restrict__ index,
                       const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                       const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                       const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ dgamma,
                       const Sum<T>* __restrict__ dbeta, T* __restrict__ dx, Sum<T> alpha,
                       Pixels pixels, Plain shape) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  constexpr Mask mask = act == Activation::kNone ? Mask::kNone : Mask::kComputed;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  A middle[V], scale[V], shift[V], slope[V], level[V];
  load_slopes<mask>(middle, scale, shift, slope, level, gamma, beta, mean, rstd, dgamma, dbeta, 0,
                    at, shape);
  auto write = [&](int64_t row) {
    Pack<T, V> g, a;
    load<whole>(a, x + row * shape.channels + at.channel, at.left);
    gathered<whole, R, S, SR, SS>(g, dy, index, pixels, row, at.channel);
    store<whole>(dx + row * shape.channels + at.channel,
                 gradient_of<act, mask, false>(g, a, a, middle, scale, shift, slope, level, alpha),
                 at.left);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t first) {
#pragma unroll 2
        for (int u = 0; u < kUnroll; ++u) write(first + int64_t{u} * shape.height());
      },
      write);
}

template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
cudaError_t forward_pooled_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V>(call, sizeof(A));
  const auto* x = static_cast<const T*>(call.x);
  auto* partial = static_cast<A*>(call.workspace);
  const Statistics<A> s = statistics_of<T>(call);
  cudaError_t error = launch_moments<T, whole>(x, partial, shape, stream);
  if (error != cudaSuccess) return error;
  error = finish_statistics(partial, s, shape, stream);
  if (error != cudaSuccess) return error;
  const Windows& z = call.windows;
  const int packs = static_cast<int>(shape.packs);
  const dim3 grid(static_cast<unsigned>((z.q * packs + kNear - 1) / kNear),
                  static_cast<unsigned>((z.p + kBand - 1) / kBand),
                  static_cast<unsigned>(z.n < 65535 ? z.n : 65535));
  return launch(normalized_pooled<T, whole, act, R, S, SR, SS>, grid, kNear, stream, x,
                static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                static_cast<const A*>(s.mean), static_cast<const A*>(s.rstd),
                static_cast<T*>(call.out), static_cast<uint8_t*>(call.new_mask),
                static_cast<A>(call.alpha), z, packs);
}

template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
cudaError_t backward_pooled_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V>(call, sizeof(A));
  const auto *x = static_cast<const T*>(call.x), *dy = static_cast<const T*>(call.dy);
  const auto* index = static_cast<const uint8_t*>(call.mask);
  const auto *gamma = static_cast<const A*>(call.gamma), *beta = static_cast<const A*>(call.beta);
  const auto *mean = static_cast<const A*>(call.mean), *rstd = static_cast<const A*>(call.rstd);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second);
  auto* const partial = static_cast<A*>(call.workspace);
  const Pixels pixels{call.windows, Quotient(call.windows.w), Quotient(call.windows.h)};
  cudaError_t error =
      launch(sums_of_pooled<T, whole, act, R, S, SR, SS>, grid_of(shape), kThreads, stream, dy, index,
             x, gamma, beta, mean, rstd, partial, static_cast<A>(call.alpha), pixels, shape);
  if (error != cudaSuccess) return error;
  error = launch(gradient_of_parameters<A, Plain>, few_grid(shape), kFew * kParts, stream,
                 static_cast<const A*>(partial), rstd, dgamma, dbeta, shape);
  if (error != cudaSuccess) return error;
  const auto last = writing(shape, call);
  return launch(gradient_of_pooled<T, whole, act, R, S, SR, SS>, grid_of(last), kThreads, stream, dy,
                index, x, gamma, beta, mean, rstd, static_cast<const A*>(dgamma),
                static_cast<const A*>(dbeta), static_cast<T*>(call.out), static_cast<A>(call.alpha),
                pixels, last);
}

template <typename T>
inline bool fits(const RelayWgradNormCall& call, const void* index) {
  return is_whole<T>(call.channels, {call.x, call.dy, call.out}) &&
         reinterpret_cast<uintptr_t>(index) % kVector<T> == 0;
}

template <typename T, Activation act, int R, int S, int SR, int SS>
int forward_pooled(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(fits<T>(call, call.new_mask)
                      ? forward_pooled_by<T, true, act, R, S, SR, SS>(call, stream)
                      : forward_pooled_by<T, false, act, R, S, SR, SS>(call, stream));
}

template <typename T, Activation act, int R, int S, int SR, int SS>
int backward_pooled(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(fits<T>(call, call.mask)
                      ? backward_pooled_by<T, true, act, R, S, SR, SS>(call, stream)
                      : backward_pooled_by<T, false, act, R, S, SR, SS>(call, stream));
}

}  // namespace
