// ---- two normalizations that are added: a block's last, and the one of its shortcut ---------------------
//
// y = activation(n(x) + n(x2)): neither result is written, and both gradients come of one pass.  What the
// activation lets through goes backward as bits.

namespace {

constexpr int kAtOnce = 2;  // rows of a thread whose loads are under way together
static_assert(kUnroll % kAtOnce == 0);

// One of the two: what its passes read of it, a value a channel.
template <typename T>
struct Side {
  const T* x;
  const Sum<T> *gamma, *beta, *mean, *rstd, *dgamma, *dbeta;
  T* dx;
};

template <typename T, int V>
struct Scales {
  Sum<T> mean[V], scale[V];
  __device__ Scales(const Side<T>& side, const Place& at) {
    Sum<T> rstd[V];
    load_channels(mean, side.mean + at.channel, at.left);
    load_channels(scale, side.gamma + at.channel, at.left);
    load_channels(rstd, side.rstd + at.channel, at.left);
#pragma unroll
    for (int i = 0; i < V; ++i) scale[i] = times(scale[i], rstd[i]);
  }
};

template <typename T, int V, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    normalized_two(Side<T> one, Side<T> two, T* y, uint8_t* __restrict__ mask,
                   Sum<T> alpha, Plain shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  const Scales<T, V> first(one, at), second(two, at);
  A shift[V], shift2[V];
  load_channels(shift, one.beta + at.channel, at.left);
  load_channels(shift2, two.beta + at.channel, at.left);
#pragma unroll
  for (int i = 0; i < V; ++i) shift[i] += shift2[i];
  auto write = [&](int64_t row, const Pack<T, V>& a, const Pack<T, V>& b) {
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A v = times_plus(less(wide(a.value[i]), first.mean[i]), first.scale[i], shift[i]);
      out.value[i] = narrow<T>(activated<act, T>(
          times_plus(less(wide(b.value[i]), second.mean[i]), second.scale[i], v), alpha));
    }
    store<whole>(y + row * shape.channels + at.channel, out, at.left);
    mask[row * shape.packs + at.pack] = passing<act>(out);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t begins) {
#pragma unroll 1
        for (int part = 0; part < kUnroll; part += 2 * kAtOnce) {
          Pack<T, V> a[2 * kAtOnce], b[2 * kAtOnce];
#pragma unroll
          for (int u = 0; u < 2 * kAtOnce; ++u) {
            const int64_t i =
                (begins + int64_t{part + u} * shape.height()) * shape.channels + at.channel;
            load_own<whole>(a[u], one.x + i, at.left);
            load_own<whole>(b[u], two.x + i, at.left);
          }
#pragma unroll
          for (int u = 0; u < 2 * kAtOnce; ++u) {
            write(begins + int64_t{part + u} * shape.height(), a[u], b[u]);
          }
        }
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> a, b;
        load_own<whole>(a, one.x + i, at.left);
        load_own<whole>(b, two.x + i, at.left);
        write(row, a, b);
      });
}

// The gradient behind the activation, of which both sides' are made.
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

// Three sums a channel: of the gradient, and of its products with both distances from the mean.
template <typename T, int V, bool whole, bool summed>
__global__ void __launch_bounds__(kThreads, kResident)
    sums_of_two(const T* dy, const T* dy2, const uint8_t* __restrict__ mask,
                Side<T> one, Side<T> two, Sum<T>* __restrict__ partial, Plain shape) {
  using A = Sum<T>;
  __shared__ A sums[kThreads * V];
  begin();
  const Place at(shape, V);
  A seen[3][V] = {};
  if (at.left > 0) {
    A mean[V], mean2[V];
    load_channels(mean, one.mean + at.channel, at.left);
    load_channels(mean2, two.mean + at.channel, at.left);
    auto add = [&](const Behind<whole, summed, T, V>& behind, const Pack<T, V>& a,
                   const Pack<T, V>& b) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A d = behind.of(i);
        seen[0][i] += d;
        seen[1][i] = times_plus(d, less(wide(a.value[i]), mean[i]), seen[1][i]);
        seen[2][i] = times_plus(d, less(wide(b.value[i]), mean2[i]), seen[2][i]);
      }
    };
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t begins) {
#pragma unroll 1
          for (int part = 0; part < kUnroll; part += kAtOnce) {
            Behind<whole, summed, T, V> behind[kAtOnce];
            Pack<T, V> a[kAtOnce], b[kAtOnce];
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) {
              const int64_t row = begins + int64_t{part + u} * shape.height();
              behind[u].read(dy, dy2, mask, row, shape, at);
              load<whole>(a[u], one.x + row * shape.channels + at.channel, at.left);
              load<whole>(b[u], two.x + row * shape.channels + at.channel, at.left);
            }
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) add(behind[u], a[u], b[u]);
          }
        },
        [&](int64_t row) {
          Behind<whole, summed, T, V> behind;
          Pack<T, V> a, b;
          behind.read(dy, dy2, mask, row, shape, at);
          load<whole>(a, one.x + row * shape.channels + at.channel, at.left);
          load<whole>(b, two.x + row * shape.channels + at.channel, at.left);
          add(behind, a, b);
        });
  }
  const int stride = shape.width * V;
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) sums[threadIdx.x * V + i] = seen[which][i];
    __syncthreads();
    for (int c = threadIdx.x; c < stride; c += kThreads) {
      const int64_t channel = int64_t{blockIdx.x} * stride + c;
      if (channel >= shape.channels) break;
      A sum = 0;
      for (int row = 0; row < shape.height(); ++row) sum += sums[row * stride + c];
      partial[(3 * blockIdx.y + which) * shape.channels + channel] = sum;
    }
  }
}

template <typename A>
__global__ void __launch_bounds__(kFew* kParts)
    parameters_of_two(const A* __restrict__ partial, const A* __restrict__ rstd,
                      const A* __restrict__ rstd2, A* __restrict__ dgamma, A* __restrict__ dbeta,
                      A* __restrict__ dgamma2, A* __restrict__ dbeta2, Plain shape) {
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const bool there = channel < shape.channels;
  const A* const from = partial + (there ? channel : 0);
  A sums[3];
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    sums[which] = over_blocks<A>(shape.blocks,
                                 [&](int y) { return from[(3 * y + which) * shape.channels]; });
  }
  if (!there || threadIdx.x >= kFew) return;
  dbeta[channel] = dbeta2[channel] = sums[0];
  dgamma[channel] = sums[1] * rstd[channel];
  dgamma2[channel] = sums[2] * rstd2[channel];
}

// Of a side: dx = scale d - ((x - mean) slope + level).
template <typename T, int V>
struct Slopes : Scales<T, V> {
  Sum<T> slope[V], level[V];
  __device__ Slopes(const Side<T>& side, const Place& at, const Plain& shape)
      : Scales<T, V>(side, at) {
    const Sum<T> each = Sum<T>(1) / Sum<T>(shape.rows);
    Sum<T> rstd[V];
    load_channels(rstd, side.rstd + at.channel, at.left);
    load_channels(slope, side.dgamma + at.channel, at.left);
    load_channels(level, side.dbeta + at.channel, at.left);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      slope[i] = this->scale[i] * rstd[i] * (slope[i] * each);
      level[i] = this->scale[i] * (level[i] * each);
    }
  }
  __device__ T of(Sum<T> d, T x, int i) const {
    const Sum<T> apart = less(wide(x), this->mean[i]);
    return narrow<T>(this->scale[i] * d - (apart * slope[i] + level[i]));
  }
};

template <typename T, int V, bool whole, bool summed>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_of_two(const T* dy, const T* dy2,
                    const uint8_t* __restrict__ mask, Side<T> one, Side<T> two, Plain shape) {
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  const Slopes<T, V> first(one, at, shape), second(two, at, shape);
  auto write = [&](int64_t row, const Behind<whole, summed, T, V>& behind, const Pack<T, V>& a,
                   const Pack<T, V>& b) {
    Pack<T, V> out, out2;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Sum<T> d = behind.of(i);
      out.value[i] = first.of(d, a.value[i], i);
      out2.value[i] = second.of(d, b.value[i], i);
    }
    store<whole>(one.dx + row * shape.channels + at.channel, out, at.left);
    store<whole>(two.dx + row * shape.channels + at.channel, out2, at.left);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t begins) {
#pragma unroll 1
        for (int part = 0; part < kUnroll; part += kAtOnce) {
          Behind<whole, summed, T, V> behind[kAtOnce];
          Pack<T, V> a[kAtOnce], b[kAtOnce];
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            const int64_t row = begins + int64_t{part + u} * shape.height();
            behind[u].read(dy, dy2, mask, row, shape, at);
            load_own<whole>(a[u], one.x + row * shape.channels + at.channel, at.left);
            load_own<whole>(b[u], two.x + row * shape.channels + at.channel, at.left);
          }
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            write(begins + int64_t{part + u} * shape.height(), behind[u], a[u], b[u]);
          }
        }
      },
      [&](int64_t row) {
        Behind<whole, summed, T, V> behind;
        Pack<T, V> a, b;
        behind.read(dy, dy2, mask, row, shape, at);
        load_own<whole>(a, one.x + row * shape.channels + at.channel, at.left);
        load_own<whole>(b, two.x + row * shape.channels + at.channel, at.left);
        write(row, behind, a, b);
      });
}

template <typename T, bool whole, Activation act>
cudaError_t forward_of_two_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V>(call, sizeof(A));
  auto* const partial = static_cast<A*>(call.workspace);
  const RelayWgradNormOther& o = call.other;
  RelayWgradNormCall other = call;
  other.running_mean = o.running_mean, other.running_var = o.running_var;
  other.first = o.first, other.second = o.second;
  other.new_mean = o.new_mean, other.new_var = o.new_var;
  const T* const x[2] = {static_cast<const T*>(call.x), static_cast<const T*>(o.x)};
  const Statistics<A> s[2] = {statistics_of<T>(call), statistics_of<T>(other)};
  for (int i = 0; i < 2; ++i) {
    cudaError_t error = launch_moments<T, whole>(x[i], partial, shape, stream);
    if (error != cudaSuccess) return error;
    error = finish_statistics(partial, s[i], shape, stream);
    if (error != cudaSuccess) return error;
  }
  const Side<T> one{x[0], static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                    s[0].mean, s[0].rstd, nullptr, nullptr, nullptr};
  const Side<T> two{x[1], static_cast<const A*>(o.gamma), static_cast<const A*>(o.beta),
                    s[1].mean, s[1].rstd, nullptr, nullptr, nullptr};
  const auto last = writing(shape, call);
  return launch(normalized_two<T, V, whole, act>, grid_of(last), kThreads, stream, one, two,
                static_cast<T*>(call.out), static_cast<uint8_t*>(call.new_mask),
                static_cast<A>(call.alpha), last);
}

template <typename T, Activation act, bool summed>
int forward_of_two(const RelayWgradNormCall& call, cudaStream_t stream) {
  static_assert(!summed);
  const bool whole = is_whole<T>(call.channels, {call.x, call.other.x, call.out});
  return finished(whole ? forward_of_two_by<T, true, act>(call, stream)
                        : forward_of_two_by<T, false, act>(call, stream));
}

template <typename T, bool whole, bool summed>
cudaError_t backward_of_two_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const auto shape = shape_of<V>(call, sizeof(A));
  const RelayWgradNormOther& o = call.other;
  const auto *dy = static_cast<const T*>(call.dy), *dy2 = static_cast<const T*>(call.dy2);
  const auto* mask = static_cast<const uint8_t*>(call.mask);
  auto* const partial = static_cast<A*>(call.workspace);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second),
       *dgamma2 = static_cast<A*>(o.first), *dbeta2 = static_cast<A*>(o.second);
  const Side<T> one{static_cast<const T*>(call.x), static_cast<const A*>(call.gamma), nullptr,
                    static_cast<const A*>(call.mean), static_cast<const A*>(call.rstd), dgamma, dbeta,
                    static_cast<T*>(call.out)};
  const Side<T> two{static_cast<const T*>(o.x), static_cast<const A*>(o.gamma), nullptr,
                    static_cast<const A*>(o.mean), static_cast<const A*>(o.rstd), dgamma2, dbeta2,
                    static_cast<T*>(o.out)};
  cudaError_t error = launch(sums_of_two<T, V, whole, summed>, grid_of(shape), kThreads, stream, dy,
                             dy2, mask, one, two, partial, shape);
  if (error != cudaSuccess) return error;
  error = launch(parameters_of_two<A>, few_grid(shape), kFew * kParts, stream,
                 static_cast<const A*>(partial), one.rstd, two.rstd, dgamma, dbeta, dgamma2, dbeta2,
                 shape);
  if (error != cudaSuccess) return error;
  const auto last = writing(shape, call);
  return launch(gradient_of_two<T, V, whole, summed>, grid_of(last), kThreads, stream, dy, dy2, mask,
                one, two, last);
}

// The activation's bits are all that is left of it.
template <typename T, Activation act, bool summed>
int backward_of_two(const RelayWgradNormCall& call, cudaStream_t stream) {
  const bool whole = is_whole<T>(call.channels, {call.x, call.other.x, call.dy, call.dy2, call.out,
                                                 call.other.out});
  return finished(whole ? backward_of_two_by<T, true, summed>(call, stream)
                        : backward_of_two_by<T, false, summed>(call, stream));
}

}  // namespace
