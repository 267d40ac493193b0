// ---- backward: both sums in one pass, then the gradient in another --------------------------------------
//
// With dy' what comes through the activation, m rows and n = (x - mean) rstd:
//   dbeta = sum(dy'),  dgamma = sum(dy' n),  dx = gamma rstd (dy' - dbeta / m - n dgamma / m).

namespace {

// Where dy' comes from: dy itself, dy and the activation of what x gives, or dy and the stored y; of the
// last the first pass writes dy', which is the residual's gradient, and the second reads it.
enum class Mask { kNone, kComputed, kStored };

template <typename T, int V, Activation act, Mask mask>
__global__ void __launch_bounds__(kThreads, RW_NORM_RESIDENT)
    gradient_sums(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                  const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                  const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                  T* __restrict__ dresidual, Sum<T>* __restrict__ partial, Shape shape) {
  using A = Sum<T>;
  constexpr int kPasses = 2;
  __shared__ A sums[kPasses][kThreads * V];
  begin();
  const Place at(shape, V);
  A plain[V] = {}, weighted[V] = {};
  if (at.channel < shape.channels) {
    A middle[V], scale[V], shift[V];
    load_channels(middle, mean, at.channel);
    if constexpr (mask == Mask::kComputed) {
      load_channels(scale, gamma, at.channel);
      load_channels(shift, rstd, at.channel);
#pragma unroll
      for (int i = 0; i < V; ++i) scale[i] = times(scale[i], shift[i]);
      load_channels(shift, beta, at.channel);
    }
    auto add = [&](Pack<T, V>& g, const Pack<T, V>& a, const Pack<T, V>& b) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A apart = less(wide(a.value[i]), middle[i]);
        A d = wide(g.value[i]);
        if constexpr (mask == Mask::kComputed) {
          d = before<act, T>(d, times_plus(apart, scale[i], shift[i]));
        } else if constexpr (mask == Mask::kStored) {
          if (!passes<act>(wide(b.value[i]))) {
            d = 0;
            g.value[i] = narrow<T>(d);
          }
        }
        plain[i] += d;
        weighted[i] = times_plus(d, apart, weighted[i]);
      }
    };
    each_chunk<false>(
        shape, at.row,
        [&](int64_t first) {
          Pack<T, V> g[kUnroll], a[kUnroll], b[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
            g[u] = load<mask == Mask::kStored ? Use::kLast : Use::kAgain, T, V>(dy + i);
            a[u] = load<Use::kAgain, T, V>(x + i);
            if constexpr (mask == Mask::kStored) b[u] = load<Use::kLast, T, V>(y + i);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            add(g[u], a[u], b[u]);
            if constexpr (mask == Mask::kStored) {
              const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
              store(dresidual + i, g[u]);
            }
          }
        },
        [&](int64_t row) {
          const int64_t i = row * shape.channels + at.channel;
          Pack<T, V> g = load<Use::kAgain, T, V>(dy + i), b;
          if constexpr (mask == Mask::kStored) b = load<Use::kLast, T, V>(y + i);
          add(g, load<Use::kAgain, T, V>(x + i), b);
          if constexpr (mask == Mask::kStored) store(dresidual + i, g);
        });
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[0][threadIdx.x * V + i] = plain[i];
    sums[1][threadIdx.x * V + i] = weighted[i];
  }
  __syncthreads();
  const int stride = shape.width * V;
  for (int which = threadIdx.x; which < kPasses * stride; which += kThreads) {
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

template <typename T, int V, Activation act, Mask mask>
__global__ void __launch_bounds__(kThreads, RW_NORM_RESIDENT)
    gradient(const T* __restrict__ dy, const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
             const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
             const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ dgamma,
             const Sum<T>* __restrict__ dbeta, T* __restrict__ dx, Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.channel >= shape.channels) return;
  A middle[V], scale[V], shift[V], slope[V], level[V];
  load_channels(middle, mean, at.channel);
  load_channels(scale, gamma, at.channel);
  load_channels(shift, rstd, at.channel);
  load_channels(slope, dgamma, at.channel);
  load_channels(level, dbeta, at.channel);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A each = A(1) / A(shape.rows);
    scale[i] = times(scale[i], shift[i]);
    slope[i] = scale[i] * shift[i] * (slope[i] * each);
    level[i] = scale[i] * (level[i] * each);
  }
  if constexpr (mask == Mask::kComputed) load_channels(shift, beta, at.channel);
  auto value = [&](const Pack<T, V>& g, const Pack<T, V>& a) {
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A apart = less(wide(a.value[i]), middle[i]);
      A d = wide(g.value[i]);
      if constexpr (mask == Mask::kComputed) {
        d = before<act, T>(d, times_plus(apart, scale[i], shift[i]));
      }
      out.value[i] = narrow<T>(scale[i] * d - (apart * slope[i] + level[i]));
    }
    return out;
  };
  each_chunk<!RW_NORM_FORWARDS>(
      shape, at.row,
      [&](int64_t first) {
        Pack<T, V> g[kUnroll], a[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
          g[u] = load<Use::kLast, T, V>(dy + i);
          a[u] = load<Use::kLast, T, V>(x + i);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
          store(dx + i, value(g[u], a[u]));
        }
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        store(dx + i, value(load<Use::kLast, T, V>(dy + i), load<Use::kLast, T, V>(x + i)));
      });
}

template <typename T, int V, Activation act, Mask mask>
cudaError_t backward_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  const Shape shape = shape_of<V>(call, sizeof(A));
  const auto *x = static_cast<const T*>(call.x), *dy = static_cast<const T*>(call.dy);
  const auto *gamma = static_cast<const A*>(call.gamma), *beta = static_cast<const A*>(call.beta);
  const auto *mean = static_cast<const A*>(call.mean), *rstd = static_cast<const A*>(call.rstd);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second);
  auto* const partial = static_cast<A*>(call.workspace);
  auto* const through = static_cast<T*>(call.dresidual);
  cudaError_t error =
      launch(gradient_sums<T, V, act, mask>, grid_of(shape), kThreads, stream, dy, x,
             static_cast<const T*>(call.y), gamma, beta, mean, rstd, through, partial, shape);
  if (error != cudaSuccess) return error;
  const A* const sums = partial;
  error = launch(gradient_of_parameters<A>, few_grid(shape), kFew * kParts, stream, sums, rstd, dgamma,
                 dbeta, shape);
  if (error != cudaSuccess) return error;
  constexpr bool kStored = mask == Mask::kStored;
  constexpr Mask kLater = kStored ? Mask::kNone : mask;
  return launch(gradient<T, V, kStored ? Activation::kNone : act, kLater>, grid_of(shape), kThreads,
                stream, kStored ? static_cast<const T*>(through) : dy, x, gamma, beta, mean, rstd,
                static_cast<const A*>(dgamma), static_cast<const A*>(dbeta),
                static_cast<T*>(call.out), shape);
}

template <typename T, Activation act, Mask mask>
int backward(const RelayWgradNormCall& call, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const bool fits =
      is_wide(call.channels, kVector, {call.x, call.dy, call.y, call.dresidual, call.out});
  return finished(fits ? backward_by<T, kVector, act, mask>(call, stream)
                       : backward_by<T, 1, act, mask>(call, stream));
}

}  // namespace
