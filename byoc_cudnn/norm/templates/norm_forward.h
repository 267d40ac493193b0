// ---- forward: moments, statistics, the result ---------------------------------------------------------
//
// Moments are means and sums of squared distances from them.  Two groups merge by
//   mean = mean_a + (mean_b - mean_a) n_b / n,  m2 = m2_a + m2_b + (mean_b - mean_a)^2 n_a n_b / n,
// many at once by mean = sum(n_i mean_i) / n,  m2 = sum(m2_i + n_i (mean_i - mean)^2): nothing large is
// taken from anything large.

namespace {

template <typename T, int V, bool whole>
__global__ void __launch_bounds__(kThreads, kResident)
    moments(const T* __restrict__ x, Sum<T>* __restrict__ partial, Shape shape) {
  using A = Sum<T>;
  __shared__ A means[kThreads * V], squares[kThreads * V];
  __shared__ int counts[kThreads];
  begin();
  const Place at(shape, V);
  A mean[V] = {}, m2[V] = {};
  int count = 0;
  if (at.channel < shape.channels) {
    const T* from = x + at.channel;
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t first) {
          Pack<T, V> rows[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            load<Use::kAgain, whole>(
                rows[u], from + (first + int64_t{u} * shape.height()) * shape.channels, at.left);
          }
          const A share = A(kUnroll) / A(count + kUnroll), both = share * A(count);
          count += kUnroll;
#pragma unroll
          for (int i = 0; i < V; ++i) {
            A sum = wide(rows[0].value[i]);
#pragma unroll
            for (int u = 1; u < kUnroll; ++u) sum += wide(rows[u].value[i]);
            const A middle = sum * (A(1) / kUnroll), apart = middle - mean[i];
            A square = m2[i] + apart * apart * both;
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
              const A d = wide(rows[u].value[i]) - middle;
              square += d * d;
            }
            mean[i] += apart * share;
            m2[i] = square;
          }
        },
        [&](int64_t row) {
          Pack<T, V> one;
          load<Use::kAgain, whole>(one, from + row * shape.channels, at.left);
          const A share = A(1) / A(++count);
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const A value = wide(one.value[i]), apart = value - mean[i];
            mean[i] += apart * share;
            m2[i] += apart * (value - mean[i]);
          }
        });
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    means[threadIdx.x * V + i] = mean[i];
    squares[threadIdx.x * V + i] = m2[i];
  }
  counts[threadIdx.x] = count;
  __syncthreads();
  const int stride = shape.width * V;
  const A all = A(shape.rows_of(blockIdx.y));
  for (int c = threadIdx.x; c < stride; c += kThreads) {
    const int64_t channel = int64_t{blockIdx.x} * stride + c;
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
    A* const to = partial + 2 * blockIdx.y * shape.channels + channel;
    to[0] = middle;
    to[shape.channels] = square;
  }
}

template <typename A>
struct Statistics {
  A epsilon, momentum;
  bool unbiased;
  const A *running_mean, *running_var;
  A *mean, *rstd, *new_mean, *new_var;
};

template <typename A>
__global__ void __launch_bounds__(kFew* kParts)
    statistics(const A* __restrict__ partial, Statistics<A> s, Shape shape) {
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const bool there = channel < shape.channels;
  const A* const from = partial + (there ? channel : 0);
  const A n = A(shape.rows);
  const A mean = over_blocks<A>(shape.blocks, [&](int y) {
                   return A(shape.rows_of(y)) * from[2 * y * shape.channels];
                 }) / n;
  const A m2 = over_blocks<A>(shape.blocks, [&](int y) {
    const A apart = from[2 * y * shape.channels] - mean;
    return from[(2 * y + 1) * shape.channels] + A(shape.rows_of(y)) * apart * apart;
  });
  if (!there || threadIdx.x >= kFew) return;
  const A var = m2 / n;
  s.mean[channel] = mean;
  s.rstd[channel] = A(1) / sqrt(var + s.epsilon);
  if (s.new_mean != nullptr) {
    const A spread = s.unbiased ? m2 / (n - A(1)) : var;
    s.new_mean[channel] = (A(1) - s.momentum) * s.running_mean[channel] + s.momentum * mean;
    s.new_var[channel] = (A(1) - s.momentum) * s.running_var[channel] + s.momentum * spread;
  }
}

// `bits`: a byte for each pack goes along, which tells what the activation lets through.
template <typename T, int V, bool whole, Activation act, bool residual, bool bits>
__global__ void __launch_bounds__(kThreads, kResident)
    normalized(const T* __restrict__ x, const T* __restrict__ more, const Sum<T>* __restrict__ gamma,
               const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
               const Sum<T>* __restrict__ rstd, T* __restrict__ y, uint8_t* __restrict__ mask,
               Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  A middle[V], scale[V], shift[V];
  load_channels(middle, mean + at.channel, at.left);
  load_channels(scale, gamma + at.channel, at.left);
  load_channels(shift, rstd + at.channel, at.left);
#pragma unroll
  for (int i = 0; i < V; ++i) scale[i] = times(scale[i], shift[i]);
  load_channels(shift, beta + at.channel, at.left);
  auto write = [&](int64_t row, const Pack<T, V>& a, const Pack<T, V>& b) {
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A v = times_plus(less(wide(a.value[i]), middle[i]), scale[i], shift[i]);
      if constexpr (residual) v += wide(b.value[i]);
      out.value[i] = narrow<T>(activated<act>(v));
    }
    store<whole>(y + row * shape.channels + at.channel, out, at.left);
    if constexpr (bits) mask[row * shape.packs + at.pack] = passing<act>(out);
  };
  each_chunk<true, whole>(
      shape, at.row,
      [&](int64_t first) {
        Pack<T, V> a[kUnroll], b[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
          load<Use::kLast, whole>(a[u], x + i, at.left);
          if constexpr (residual) load<Use::kLast, whole>(b[u], more + i, at.left);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) write(first + int64_t{u} * shape.height(), a[u], b[u]);
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> a, b;
        load<Use::kLast, whole>(a, x + i, at.left);
        if constexpr (residual) load<Use::kLast, whole>(b, more + i, at.left);
        write(row, a, b);
      });
}

template <typename T, bool whole, Activation act, bool residual, bool bits>
cudaError_t forward_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const Shape shape = shape_of<V>(call, sizeof(A));
  const auto* x = static_cast<const T*>(call.x);
  auto* partial = static_cast<A*>(call.workspace);
  auto *mean = static_cast<A*>(call.first), *rstd = static_cast<A*>(call.second);
  const Statistics<A> s{static_cast<A>(call.epsilon), static_cast<A>(call.momentum), call.unbiased,
                        static_cast<const A*>(call.running_mean),
                        static_cast<const A*>(call.running_var), mean, rstd,
                        static_cast<A*>(call.new_mean), static_cast<A*>(call.new_var)};
  cudaError_t error =
      launch(moments<T, V, whole>, grid_of(shape), kThreads, stream, x, partial, shape);
  if (error != cudaSuccess) return error;
  const A* const sums = partial;
  error = launch(statistics<A>, few_grid(shape), kFew * kParts, stream, sums, s, shape);
  if (error != cudaSuccess) return error;
  const Shape last = writing(shape, call);
  return launch(normalized<T, V, whole, act, residual, bits>, grid_of(last), kThreads, stream, x,
                static_cast<const T*>(call.residual), static_cast<const A*>(call.gamma),
                static_cast<const A*>(call.beta), static_cast<const A*>(mean),
                static_cast<const A*>(rstd), static_cast<T*>(call.out),
                static_cast<uint8_t*>(call.new_mask), last);
}

template <typename T, Activation act, bool residual, bool bits>
int forward(const RelayWgradNormCall& call, cudaStream_t stream) {
  const bool whole = is_whole<T>(call.channels, {call.x, call.residual, call.out});
  return finished(whole ? forward_by<T, true, act, residual, bits>(call, stream)
                        : forward_by<T, false, act, residual, bits>(call, stream));
}

}  // namespace
