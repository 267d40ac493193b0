// ---- around a gate: squeeze and excitation of what is normalized -----------------------------------------
//
// With z = (x - mean) rstd gamma + beta, v = act(z) and p = act'(z), a gate G and an image's share L of
// the gradient of its mean, for each image and channel:
//   squeezed = mean(v),  y = G v + residual,  dgate = sum(dy v),
//   dv = dy G + L,  dbeta = sum(dv p),  dgamma = sum(dv p n),  n = (x - mean) rstd,
//   dx = gamma rstd (dv p - dbeta / m - n dgamma / m).
// G and L are the same for all pixels of an image, so dbeta and dgamma are known from an image's sums
// of dy p, dy p (x - mean), p and p (x - mean), which the pass that sums dy v makes too: v is never in
// memory, and x is read once for what each direction knows only in the end, and once to write.

namespace {

// What a thread needs of its channels; beta takes the place of rstd.
template <int V, typename A>
struct Affine {
  A middle[V], scale[V], shift[V];
  __device__ Affine(const A* gamma, const A* beta, const A* mean, const A* rstd, const Place& at) {
    load_channels(middle, mean + at.channel, at.left);
    load_channels(scale, gamma + at.channel, at.left);
    load_channels(shift, rstd + at.channel, at.left);
#pragma unroll
    for (int i = 0; i < V; ++i) scale[i] = times(scale[i], shift[i]);
    load_channels(shift, beta + at.channel, at.left);
  }
};

// Where the sums of an image's channels go, `each` of a channel: results, each of all images, where a
// block has all of an image's rows, else to `partial`, from which `image_sums` takes them.
template <typename A, int each>
struct ImageSums {
  A* to[each];
  A* partial;
  A factor;  // of the results

  __device__ void write(int which, A sum, int64_t channel, const Shape& shape) const {
    const int64_t image = shape.image();
    if (shape.blocks == 1) {
      to[which][image * shape.channels + channel] = sum * factor;
    } else {
      partial[shape.partial_at(image, blockIdx.y, each) + which * shape.channels + channel] = sum;
    }
  }
};

// Of all rows of a block; all of its threads call it.
template <int V, typename A, int each>
__device__ inline void write_image_sums(const A (&sums)[each][V], const ImageSums<A, each>& result,
                                        const Shape& shape) {
  __shared__ A rows[kThreads * V];
  const int stride = shape.width * V;
#pragma unroll
  for (int which = 0; which < each; ++which) {
#pragma unroll
    for (int i = 0; i < V; ++i) rows[threadIdx.x * V + i] = sums[which][i];
    __syncthreads();
    for (int c = threadIdx.x; c < stride; c += kThreads) {
      const int64_t channel = shape.tile() * stride + c;
      if (channel >= shape.channels) break;
      A sum = 0;
      for (int row = 0; row < shape.height(); ++row) sum += rows[row * stride + c];
      result.write(which, sum, channel, shape);
    }
    __syncthreads();
  }
}

// A thread for each sum of each channel of an image: of its blocks, in their order.
template <typename A, int each>
__global__ void __launch_bounds__(kThreads) image_sums(ImageSums<A, each> result, Shape shape) {
  begin();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t channel = at % shape.channels, image = at / shape.channels;
  if (image >= shape.images) return;
#pragma unroll
  for (int which = 0; which < each; ++which) {
    const A* const from = result.partial + which * shape.channels + channel;
    A sum = 0;
    for (int y = 0; y < shape.blocks; ++y) sum += from[shape.partial_at(image, y, each)];
    result.to[which][at] = sum * result.factor;
  }
}

// As many blocks of an image as there is room for their sums; one needs none.
template <int V>
inline Shape shape_of_images(const RelayWgradNormCall& call, int sum_bytes, int each) {
  Shape shape = shape_of<V>(call, sum_bytes);
  const int64_t room = call.workspace_bytes / (int64_t{each} * sum_bytes * call.channels * call.images);
  const int64_t most = kNormBlocks * 2 * call.multiprocessors / (int64_t{shape.tiles} * shape.images);
  shape.set_blocks(most < room ? most : room);
  return shape;
}

template <typename A, int each>
cudaError_t finish_image_sums(const ImageSums<A, each>& result, const Shape& shape,
                              cudaStream_t stream) {
  if (shape.blocks == 1) return cudaSuccess;
  const int64_t threads = shape.images * shape.channels;
  return launch(image_sums<A, each>, dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
                kThreads, stream, result, shape);
}

template <typename T, int V, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    activated_sums(const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                   const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                   const Sum<T>* __restrict__ rstd, ImageSums<Sum<T>, 1> result, Sum<T> alpha,
                   Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  A sums[1][V] = {};
  if (at.left > 0) {
    const Affine<V, A> affine(gamma, beta, mean, rstd, at);
    auto add = [&](const Pack<T, V>& a) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A z = times_plus(less(wide(a.value[i]), affine.middle[i]), affine.scale[i],
                               affine.shift[i]);
        sums[0][i] += activated<act, T>(z, alpha);
      }
    };
    const T* const from = x + at.channel;
    each_chunk<true, whole>(
        shape, at.row,
        [&](int64_t first) {
          Pack<T, V> rows[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            load<whole>(rows[u], from + (first + int64_t{u} * shape.height()) * shape.channels, at.left);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) add(rows[u]);
        },
        [&](int64_t row) {
          Pack<T, V> one;
          load<whole>(one, from + row * shape.channels, at.left);
          add(one);
        });
  }
  write_image_sums<V>(sums, result, shape);
}

template <typename T, int V, bool whole, Activation act, bool residual, bool relu>
__global__ void __launch_bounds__(kThreads, kResident)
    excited(const T* __restrict__ x, const T* __restrict__ more, const Sum<T>* __restrict__ gamma,
            const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
            const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ gate, T* __restrict__ y,
            Sum<T> alpha, Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  const Affine<V, A> affine(gamma, beta, mean, rstd, at);
  A factor[V];
  load_channels(factor, gate + at.image * shape.channels + at.channel, at.left);
  auto write = [&](int64_t i, const Pack<T, V>& a, const Pack<T, V>& b) {
    Pack<T, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const A z = times_plus(less(wide(a.value[k]), affine.middle[k]), affine.scale[k],
                             affine.shift[k]);
      A v = activated<act, T>(z, alpha) * factor[k];
      if constexpr (residual) v += wide(b.value[k]);
      if constexpr (relu) v = activated<Activation::kRelu, T>(v, alpha);
      out.value[k] = narrow<T>(v);
    }
    store<whole>(y + i, out, at.left);
  };
  each_chunk<false, whole>(
      shape, at.row,
      [&](int64_t first) {
        Pack<T, V> a[kUnroll], b[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
          load<whole>(a[u], x + i, at.left);
          if constexpr (residual) load<whole>(b[u], more + i, at.left);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          write((first + int64_t{u} * shape.height()) * shape.channels + at.channel, a[u], b[u]);
        }
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> a, b;
        load<whole>(a, x + i, at.left);
        if constexpr (residual) load<whole>(b, more + i, at.left);
        write(i, a, b);
      });
}

constexpr int kGateSums = 5;  // dy v; dy p, dy p (x - mean), p, p (x - mean)

template <typename T, int V, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_image_sums(const T* __restrict__ dy, const T* __restrict__ x,
                        const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                        const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                        ImageSums<Sum<T>, kGateSums> result, Sum<T> alpha, Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  A sums[kGateSums][V] = {};
  if (at.left > 0) {
    const Affine<V, A> affine(gamma, beta, mean, rstd, at);
    auto add = [&](const Pack<T, V>& g, const Pack<T, V>& a) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A apart = less(wide(a.value[i]), affine.middle[i]), d = wide(g.value[i]);
        const A z = times_plus(apart, affine.scale[i], affine.shift[i]);
        const A through = before<act, T>(d, z, alpha), slope = before<act, T>(A(1), z, alpha);
        sums[0][i] += d * activated<act, T>(z, alpha);
        sums[1][i] += through;
        sums[2][i] = times_plus(through, apart, sums[2][i]);
        sums[3][i] += slope;
        sums[4][i] = times_plus(slope, apart, sums[4][i]);
      }
    };
    each_chunk<false, whole>(
        shape, at.row,
        [&](int64_t first) {
          Pack<T, V> g[kUnroll], a[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
            load<whole>(g[u], dy + i, at.left);
            load<whole>(a[u], x + i, at.left);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) add(g[u], a[u]);
        },
        [&](int64_t row) {
          const int64_t i = row * shape.channels + at.channel;
          Pack<T, V> g, a;
          load<whole>(g, dy + i, at.left);
          load<whole>(a, x + i, at.left);
          add(g, a);
        });
  }
  write_image_sums<V>(sums, result, shape);
}

// Of each channel, over the images.
template <typename A>
__global__ void __launch_bounds__(kFew* kParts)
    gated_parameters(const A* __restrict__ gate, const A* __restrict__ lift,
                     const A* __restrict__ sums, const A* __restrict__ rstd, A* __restrict__ dgamma,
                     A* __restrict__ dbeta, Shape shape) {
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const int64_t from = channel < shape.channels ? channel : 0, all = shape.images * shape.channels;
  const int images = static_cast<int>(shape.images);
  const auto total = [&](int which) {
    return over_blocks<A>(images, [&](int image) {
      const int64_t i = image * shape.channels + from;
      return gate[i] * sums[which * all + i] + lift[i] * sums[(which + 2) * all + i];
    });
  };
  const A plain = total(0), weighted = total(1);
  if (channel >= shape.channels || threadIdx.x >= kFew) return;
  dbeta[channel] = plain;
  dgamma[channel] = weighted * rstd[channel];
}

template <typename T, int V, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    gated_gradient(const T* __restrict__ dy, const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                   const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                   const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ gate,
                   const Sum<T>* __restrict__ lift, const Sum<T>* __restrict__ dgamma,
                   const Sum<T>* __restrict__ dbeta, T* __restrict__ dx, Sum<T> alpha, Shape shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  const Affine<V, A> affine(gamma, beta, mean, rstd, at);
  A factor[V], share[V], slope[V], level[V];
  load_channels(slope, dgamma + at.channel, at.left);
  load_channels(level, dbeta + at.channel, at.left);
  load_channels(factor, rstd + at.channel, at.left);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A each = A(1) / (A(shape.rows) * A(shape.images));
    slope[i] = affine.scale[i] * factor[i] * (slope[i] * each);
    level[i] = affine.scale[i] * (level[i] * each);
  }
  load_channels(factor, gate + at.image * shape.channels + at.channel, at.left);
  load_channels(share, lift + at.image * shape.channels + at.channel, at.left);
  auto write = [&](int64_t i, const Pack<T, V>& g, const Pack<T, V>& a) {
    Pack<T, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const A apart = less(wide(a.value[k]), affine.middle[k]);
      const A dv = times_plus(wide(g.value[k]), factor[k], share[k]);
      const A d = before<act, T>(dv, times_plus(apart, affine.scale[k], affine.shift[k]), alpha);
      out.value[k] = narrow<T>(affine.scale[k] * d - (apart * slope[k] + level[k]));
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
          load<whole>(g[u], dy + i, at.left);
          load<whole>(a[u], x + i, at.left);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          write((first + int64_t{u} * shape.height()) * shape.channels + at.channel, g[u], a[u]);
        }
      },
      [&](int64_t row) {
        const int64_t i = row * shape.channels + at.channel;
        Pack<T, V> g, a;
        load<whole>(g, dy + i, at.left);
        load<whole>(a, x + i, at.left);
        write(i, g, a);
      });
}

// ---- launching --------------------------------------------------------------------------------------------

template <typename T, bool whole, Activation act>
cudaError_t squeeze_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  RelayWgradNormCall batch = call;
  batch.images = 1;
  batch.rows = call.images * call.rows;
  batch.groups = call.channels;
  const Shape rows = shape_of<V>(batch, sizeof(A)), shape = shape_of_images<V>(call, sizeof(A), 1);
  auto* const partial = static_cast<A*>(call.workspace);
  const auto* const x = static_cast<const T*>(call.x);
  const Statistics<A> s = statistics_of<T>(call);
  cudaError_t error =
      launch(moments<T, V, whole>, grid_of(rows), kThreads, stream, x, partial, rows);
  if (error != cudaSuccess) return error;
  error = finish_statistics(partial, s, rows, stream);
  if (error != cudaSuccess) return error;
  const ImageSums<A, 1> result{{static_cast<A*>(call.squeezed)}, partial, A(1) / A(call.rows)};
  error = launch(activated_sums<T, V, whole, act>, grid_of(shape), kThreads, stream, x,
                 static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                 static_cast<const A*>(s.mean), static_cast<const A*>(s.rstd), result,
                 static_cast<A>(call.alpha), shape);
  return error != cudaSuccess ? error : finish_image_sums(result, shape, stream);
}

template <typename T, Activation act>
int squeeze(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(is_whole<T>(call.channels, {call.x}) ? squeeze_by<T, true, act>(call, stream)
                                                       : squeeze_by<T, false, act>(call, stream));
}

template <typename T, bool whole, Activation act, bool residual, bool relu>
cudaError_t excite_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const Shape shape = writing(shape_of<V>(call, sizeof(A)), call);
  return launch(excited<T, V, whole, act, residual, relu>, grid_of(shape), kThreads, stream,
                static_cast<const T*>(call.x), static_cast<const T*>(call.residual),
                static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                static_cast<const A*>(call.mean), static_cast<const A*>(call.rstd),
                static_cast<const A*>(call.gate), static_cast<T*>(call.out),
                static_cast<A>(call.alpha), shape);
}

template <typename T, Activation act, bool residual, bool relu>
int excite(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(is_whole<T>(call.channels, {call.x, call.residual, call.out})
                      ? excite_by<T, true, act, residual, relu>(call, stream)
                      : excite_by<T, false, act, residual, relu>(call, stream));
}

template <typename T, bool whole, Activation act>
cudaError_t gate_sums_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const Shape shape = shape_of_images<V>(call, sizeof(A), kGateSums);
  auto* const sums = static_cast<A*>(call.new_sums);
  const int64_t all = call.images * call.channels;
  const ImageSums<A, kGateSums> result{
      {static_cast<A*>(call.squeezed), sums, sums + all, sums + 2 * all, sums + 3 * all},
      static_cast<A*>(call.workspace), A(1)};
  const cudaError_t error =
      launch(gradient_image_sums<T, V, whole, act>, grid_of(shape), kThreads, stream,
             static_cast<const T*>(call.dy), static_cast<const T*>(call.x),
             static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
             static_cast<const A*>(call.mean), static_cast<const A*>(call.rstd), result,
             static_cast<A>(call.alpha), shape);
  return error != cudaSuccess ? error : finish_image_sums(result, shape, stream);
}

template <typename T, Activation act>
int gate_sums(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(is_whole<T>(call.channels, {call.x, call.dy})
                      ? gate_sums_by<T, true, act>(call, stream)
                      : gate_sums_by<T, false, act>(call, stream));
}

template <typename T, bool whole, Activation act>
cudaError_t gate_backward_by(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const Shape shape = writing(shape_of<V>(call, sizeof(A)), call);
  const auto *gate = static_cast<const A*>(call.gate), *lift = static_cast<const A*>(call.lift);
  const auto* const rstd = static_cast<const A*>(call.rstd);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second);
  const cudaError_t error =
      launch(gated_parameters<A>, few_grid(shape), kFew * kParts, stream, gate, lift,
             static_cast<const A*>(call.sums), rstd, dgamma, dbeta, shape);
  if (error != cudaSuccess) return error;
  return launch(gated_gradient<T, V, whole, act>, grid_of(shape), kThreads, stream,
                static_cast<const T*>(call.dy), static_cast<const T*>(call.x),
                static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                static_cast<const A*>(call.mean), rstd, gate, lift, static_cast<const A*>(dgamma),
                static_cast<const A*>(dbeta), static_cast<T*>(call.out), static_cast<A>(call.alpha),
                shape);
}

template <typename T, Activation act>
int gate_backward(const RelayWgradNormCall& call, cudaStream_t stream) {
  return finished(is_whole<T>(call.channels, {call.x, call.dy, call.out})
                      ? gate_backward_by<T, true, act>(call, stream)
                      : gate_backward_by<T, false, act>(call, stream));
}

}  // namespace
