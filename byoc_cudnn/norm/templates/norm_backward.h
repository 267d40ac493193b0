// ---- backward: both sums in one pass, then the gradient in another --------------------------------------
//
// With dy' what comes through the activation, m rows and n = (x - mean) rstd:
//   dbeta = sum(dy'),  dgamma = sum(dy' n),  dx = gamma rstd (dy' - dbeta / m - n dgamma / m).

namespace {

// Where dy' comes from: dy itself; dy and the activation of what x gives; dy and the stored y, or its
// bits.  Of the last two the first pass writes dy', which is the residual's gradient, and the second
// reads it; with `summed` a second gradient is added to dy before, and the sum rounded as if apart.
enum class Mask { kNone, kComputed, kStored, kBits };

template <typename T, int V, bool whole, Activation act, Mask mask, bool summed>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_sums(const T* __restrict__ dy, const T* __restrict__ dy2, const T* __restrict__ x, const T* __restrict__ y,
                  const uint8_t* __restrict__ bits, const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                  const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                  T* __restrict__ dresidual, Sum<T>* __restrict__ partial, Shape shape) {
  using A = Sum<T>;
  constexpr bool kStored = mask == Mask::kStored, kBits = mask == Mask::kBits;
  __shared__ A sums[2][kThreads * V];
  begin();
  const Place at(shape, V);
  A plain[V] = {}, weighted[V] = {};
  if (at.left > 0) {
    A middle[V], scale[V], shift[V];
    load_channels(middle, mean + at.channel, at.left);
    if constexpr (mask == Mask::kComputed) {
      load_channels(scale, gamma + at.channel, at.left);
      load_channels(shift, rstd + at.channel, at.left);
#pragma unroll
      for (int i = 0; i < V; ++i) scale[i] = times(scale[i], shift[i]);
      load_channels(shift, beta + at.channel, at.left);
    }
    auto add = [&](int64_t row, Pack<T, V>& g, const Pack<T, V>& more, const Pack<T, V>& a,
                   const Pack<T, V>& b, uint8_t through) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A apart = less(wide(a.value[i]), middle[i]);
        if constexpr (summed) g.value[i] = narrow<T>(wide(g.value[i]) + wide(more.value[i]));
        A d = wide(g.value[i]);
        if constexpr (mask == Mask::kComputed) {
          d = before<act, T>(d, times_plus(apart, scale[i], shift[i]));
        } else if constexpr (kStored || kBits) {
          if (kStored ? !passes<act>(wide(b.value[i])) : (through >> i & 1) == 0) {
            d = 0;
            g.value[i] = narrow<T>(d);
          }
        }
        plain[i] += d;
        weighted[i] = times_plus(d, apart, weighted[i]);
      }
      if constexpr (kStored || kBits) {
        store<whole>(dresidual + row * shape.channels + at.channel, g, at.left);
      }
    };
    constexpr Use kOnce = kStored || kBits ? Use::kLast : Use::kAgain;
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t first) {
          Pack<T, V> g[kUnroll], more[kUnroll], a[kUnroll], b[kUnroll];
          uint8_t through[kUnroll] = {};
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const int64_t row = first + int64_t{u} * shape.height();
            const int64_t i = row * shape.channels + at.channel;
            load<kOnce, whole>(g[u], dy + i, at.left);
            if constexpr (summed) load<Use::kLast, whole>(more[u], dy2 + i, at.left);
            load<Use::kAgain, whole>(a[u], x + i, at.left);
            if constexpr (kStored) load<Use::kLast, whole>(b[u], y + i, at.left);
            if constexpr (kBits) through[u] = __ldg(bits + row * shape.packs + at.pack);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            add(first + int64_t{u} * shape.height(), g[u], more[u], a[u], b[u], through[u]);
          }
        },
        [&](int64_t row) {
          const int64_t i = row * shape.channels + at.channel;
          Pack<T, V> g, more, a, b;
          uint8_t through = 0;
          load<kOnce, whole>(g, dy + i, at.left);
          if constexpr (summed) load<Use::kLast, whole>(more, dy2 + i, at.left);
          load<Use::kAgain, whole>(a, x + i, at.left);
          if constexpr (kStored) load<Use::kLast, whole>(b, y + i, at.left);
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
  const int stride = shape.width * V;
  for (int which = threadIdx.x; which < 2 * stride; which += kThreads) {
    const int pass = which / stride, c = which % stride;
    const int64_t channel = int64_t{blockIdx.x} * stride + c;
    if (channel >= shape.channels) continue;
    A sum = 0;
    for (int row = 0; row < shape.height(); ++row) sum += sums[pass][row * stride + c];
    partial[(2 * blockIdx.y + pass) * shape.channels + channel] = sum;
  }
}

template <typename A>
__global__ void __launch_bounds__(kFew* kParts)
    gradient_of_parameters(const A* __restrict__ partial, const A* __restrict__ rstd,
                           A* __restrict__ dgamma, A* __restrict__ dbeta, Shape shape) {
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const bool there = channel < shape.channels;
  const A* const from = partial + (there ? channel : 0);
  const A plain = over_blocks<A>(shape.blocks, [&](int y) { return from[2 * y * shape.channels]; });
  const A weighted =
      over_blocks<A>(shape.blocks, [&](int y) { return from[(2 * y + 1) * shape.channels]; });
  if (!there || threadIdx.x >= kFew) return;
  dbeta[channel] = plain;
  dgamma[channel] = weighted * rstd[channel];
}

template <typename T, int V, bool whole, Activation act, Mask mask>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient(const T* __restrict__ dy, const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
             const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
             const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ dgamma,
             const Sum<T>* __restrict__ dbeta, T* __restrict__ dx, Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  A middle[V], scale[V], shift[V], slope[V], level[V];
  load_channels(middle, mean + at.channel, at.left);
  load_channels(scale, gamma + at.channel, at.left);
  load_channels(shift, rstd + at.channel, at.left);
  load_channels(slope, dgamma + at.channel, at.left);
  load_channels(level, dbeta + at.channel, at.left);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A each = A(1) / A(shape.rows);
    scale[i] = times(scale[i], shift[i]);
    slope[i] = scale[i] * shift[i] * (slope[i] * each);
    level[i] = scale[i] * (level[i] * each);
  }
  if constexpr (mask == Mask::kComputed) load_channels(shift, beta + at.channel, at.left);
  auto write = [&](int64_t i, const Pack<T, V>& g, const Pack<T, V>& a) {
    Pack<T, V> out;
#pragma unroll
    for (int c = 0; c < V; ++c) {
      const A apart = less(wide(a.value[c]), middle[c]);
      A d = wide(g.value[c]);
      if constexpr (mask == Mask::kComputed) {
        d = before<act, T>(d, times_plus(apart, scale[c], shift[c]));
      }
      out.value[c] = narrow<T>(scale[c] * d - (apart * slope[c] + level[c]));
    }
    store<whole>(dx + i, out, at.left);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t first) {
        Pack<T, V> g[kUnroll], a[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
          load<Use::kLast, whole>(g[u], dy + i, at.left);
          load<Use::kLast, whole>(a[u], x + i, at.left);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          write((first + int64_t{u} * shape.height()) * shape.channels + at.channel, g[u], a[u]);
        }
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> g, a;
        load<Use::kLast, whole>(g, dy + i, at.left);
        load<Use::kLast, whole>(a, x + i, at.left);
        write(i, g, a);
      });
}

template <typename T, bool whole, Activation act, Mask mask, bool summed>
cudaError_t backward_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const Shape shape = shape_of<V>(call, sizeof(A));
  const auto *x = static_cast<const T*>(call.x), *dy = static_cast<const T*>(call.dy);
  const auto *gamma = static_cast<const A*>(call.gamma), *beta = static_cast<const A*>(call.beta);
  const auto *mean = static_cast<const A*>(call.mean), *rstd = static_cast<const A*>(call.rstd);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second);
  auto* const partial = static_cast<A*>(call.workspace);
  auto* const through = static_cast<T*>(call.dresidual);
  cudaError_t error =
      launch(gradient_sums<T, V, whole, act, mask, summed>, grid_of(shape), kThreads, stream, dy,
             static_cast<const T*>(call.dy2), x, static_cast<const T*>(call.y),
             static_cast<const uint8_t*>(call.mask), gamma, beta, mean, rstd, through, partial, shape);
  if (error != cudaSuccess) return error;
  const A* const sums = partial;
  error = launch(gradient_of_parameters<A>, few_grid(shape), kFew * kParts, stream, sums, rstd, dgamma,
                 dbeta, shape);
  if (error != cudaSuccess) return error;
  constexpr bool kWritten = mask == Mask::kStored || mask == Mask::kBits;
  constexpr Mask kLater = kWritten ? Mask::kNone : mask;
  const Shape last = writing(shape, call);
  return launch(gradient<T, V, whole, kWritten ? Activation::kNone : act, kLater>, grid_of(last),
                kThreads, stream, kWritten ? static_cast<const T*>(through) : dy, x, gamma, beta, mean,
                rstd, static_cast<const A*>(dgamma), static_cast<const A*>(dbeta),
                static_cast<T*>(call.out), last);
}

template <typename T, Activation act, Mask mask, bool summed>
int backward(const RelayWgradNormCall& call, cudaStream_t stream) {
  const bool whole =
      is_whole<T>(call.channels, {call.x, call.dy, call.dy2, call.y, call.dresidual, call.out});
  return finished(whole ? backward_by<T, true, act, mask, summed>(call, stream)
                        : backward_by<T, false, act, mask, summed>(call, stream));
}

}  // namespace
