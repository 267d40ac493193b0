// ---- around a gate: squeeze and excitation of what is normalized -----------------------------------------
//
// With z = (x - mean) rstd gamma + beta, v = act(z) and p = act'(z), a gate G and an image's share L of
// the gradient of its mean, for each image and channel:
//   squeezed = mean(v),  y = G v + residual,  dgate = sum(dy v),
//   dv = dy G + L,  dbeta = sum(dv p),  dgamma = sum(dv p n),  n = (x - mean) rstd,
//   dx = gamma rstd (dv p - dbeta / m - n dgamma / m).
// Where ReLU ends y, dy is what that lets through of y's gradient: by bits that the pass that writes y
// tells, and written by the pass that sums it.
// G and L are the same for all pixels of an image, so dbeta and dgamma are known from an image's sums
// of dy p, dy p (x - mean), p and p (x - mean), which the pass that sums dy v makes too: v is never in
// memory, and x is read once for what each direction knows only in the end, and once to write.

namespace {

using Images = Shape<true, true>;
using Rows = Shape<false, true>;  // of the batch

// What a thread needs of its channels.  All loads come before what is made of them: else the first use of
// one is waited for before the next is under way.
template <int V, typename A>
struct Affine {
  A middle[V], scale[V], shift[V], spread[V];  // spread: rstd
  __device__ Affine() {}
  __device__ Affine(const A* gamma, const A* beta, const A* mean, const A* rstd, const Place& at,
                    const Images& shape) {
    load_columns(middle, mean, at, shape);
    load(gamma, beta, rstd, at, shape);
  }
  // All but what is subtracted.
  __device__ void load(const A* gamma, const A* beta, const A* rstd, const Place& at,
                       const Images& shape) {
    load_columns(scale, gamma, at, shape);
    load_columns(spread, rstd, at, shape);
    load_columns(shift, beta, at, shape);
#pragma unroll
    for (int i = 0; i < V; ++i) scale[i] = times(scale[i], spread[i]);
  }
};

// Calls `some(first row, how many)` for each turn of a thread: up to kUnroll rows, `height` apart, whose
// loads are all under way at once; images are few rows, so that a turn is seldom whole.
template <bool backwards, typename Some>
__device__ inline void each_turn(const Images& shape, int row, Some some) {
  const int64_t origin = shape.image() * shape.rows;
  for (int64_t i = blockIdx.y; i < shape.chunks; i += shape.blocks) {
    const int64_t chunk = backwards ? shape.chunks - 1 - i : i;
    const int64_t first = chunk * shape.chunk_rows() + row, left = shape.rows - first;
    if (left <= 0) continue;
    const int64_t turns = (left + shape.height() - 1) / shape.height();
    some(origin + first, turns < kUnroll ? static_cast<int>(turns) : kUnroll);
  }
}

// Where the sums of an image's channels go, `each` of a channel: results, each of all images, where a
// block has all of an image's rows, else to `partial`, from which `image_sums` takes them.
template <typename A, int each>
struct ImageSums {
  A* to[each];
  A* partial;
  A factor;  // of the results

  // Whether a block has all values of its channels.
  __host__ __device__ static bool is_whole(const Images& shape) {
    return shape.blocks == 1 && shape.fold == 1;
  }
  __device__ void write(int which, A sum, int64_t channel, const Images& shape) const {
    const int64_t image = shape.image();
    if (is_whole(shape)) {
      to[which][image * shape.channels + channel] = sum * factor;
    } else {
      partial[shape.partial_at(image, blockIdx.y, each) + which * shape.channels + channel] = sum;
    }
  }
};

// Of all rows of a block; all of its threads call it.
template <int V, typename A, int each>
__device__ inline void write_image_sums(const A (&sums)[each][V], const ImageSums<A, each>& result,
                                        const Images& shape) {
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
__global__ void __launch_bounds__(kThreads) image_sums(ImageSums<A, each> result, Images shape) {
  begin();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t channel = at % shape.real(), image = at / shape.real();
  if (image >= shape.images) return;
#pragma unroll
  for (int which = 0; which < each; ++which) {
    const A* const from = result.partial + which * shape.channels + channel;
    A sum = 0;
    for (int y = 0; y < shape.blocks; ++y) {
      for (int r = 0; r < shape.fold; ++r) {
        sum += from[shape.partial_at(image, y, each) + r * shape.real()];
      }
    }
    result.to[which][at] = sum * result.factor;
  }
}

constexpr int64_t kGatedWriters = 8;  // blocks of a multiprocessor

// A call of an image's rows side by side, where its sizes and the room for `each` sums let them be; none
// where bits go from one call to another, whose room may differ.
template <typename T>
inline RelayWgradNormCall folded_images(const RelayWgradNormCall& call, int each) {
  if (call.mask != nullptr || call.new_mask != nullptr) return side_by_side(call, 1);
  const int64_t fold = norm_fold(call.images, call.rows, call.channels, call.groups, kVector<T>);
  const int64_t sums = int64_t{each} * int64_t{sizeof(Sum<T>)} * call.channels * call.images;
  return side_by_side(call, call.workspace_bytes >= sums * fold ? fold : 1);
}

// As many blocks of an image as there is room for their sums; one needs none.
template <typename T>
inline Images shape_of_images(const RelayWgradNormCall& wide, int each) {
  Images shape = shape_of<kVector<T>, Images>(wide, sizeof(Sum<T>));
  const int64_t sums = int64_t{each} * int64_t{sizeof(Sum<T>)} * wide.channels * wide.images;
  const int64_t room = wide.workspace_bytes / sums;
  const int64_t most = kNormBlocks * 2 * wide.multiprocessors / (int64_t{shape.tiles} * shape.images);
  shape.set_blocks(most < room ? most : room);
  return shape;
}

// For a pass without sums: what a thread reads before its first row is as much as for some rows.
template <typename T>
inline Images writing_images(const RelayWgradNormCall& wide) {
  Images shape = shape_of<kVector<T>, Images>(wide, sizeof(Sum<T>));
  shape.set_blocks(kGatedWriters * wide.multiprocessors / (int64_t{shape.tiles} * shape.images));
  return shape;
}

// Of blocks with a thread for each channel of an image.
inline dim3 images_grid(const Images& shape) {
  const int64_t threads = shape.images * shape.real();
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}

template <typename A, int each>
cudaError_t finish_image_sums(const ImageSums<A, each>& result, const Images& shape,
                              cudaStream_t stream) {
  if (result.is_whole(shape)) return cudaSuccess;
  return launch(image_sums<A, each>, images_grid(shape), kThreads, stream, result, shape);
}

// Moments of each image's channels.  Without an activation all of squeeze is made of them: the batch's
// are those of its images, and the mean of v is where the mean of x goes, so x is read once.
template <typename T, int V, bool whole>
__global__ void __launch_bounds__(kThreads, kResident)
    image_moments(const T* __restrict__ x, Sum<T>* __restrict__ partial, Images shape) {
  begin();
  const Place at(shape, V);
  Moments<T, V> seen;
  if (at.left > 0) {
    const T* const from = x + at.channel;
    each_turn<false>(shape, at.row, [&](int64_t first, int count) {
      Pack<T, V> rows[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= count) break;
        load<whole>(rows[u], from + (first + int64_t{u} * shape.height()) * shape.channels, at.left);
      }
      seen.add_first(rows, count);
    });
  }
  write_moments(seen, partial, at, shape);
}

// A channel's moments of images, each of which has those of its blocks, and of each of whose rows side by
// side it has some.
template <typename A>
struct ImageParts {
  const A* partial;
  int64_t channel;
  const Images& shape;

  __device__ Merged<A> of(int image) const {
    const int count = shape.parts();
    const A* const from = partial + shape.partial_at(image, 0, 2) + channel;
    Merged<A> all = {};
    for (int first = 0; first < count; first += kImageParts) {
      Merged<A> parts[kImageParts] = {};
#pragma unroll
      for (int k = 0; k < kImageParts; ++k) {
        const auto part = shape.part(first + k < count ? first + k : count - 1);
        const A* const at = from + shape.part_at(part, 2);
        parts[k] = {A(shape.rows_of(part.y)), at[0], at[shape.channels]};
        if (first + k >= count) parts[k] = {};
      }
      all.add(parts);
    }
    return all;
  }

 private:
  static constexpr int kImageParts = 4;  // under way at once
};

// Of a batch, by the moments of its images; and of each image, by the batch's statistics.
template <typename A>
__global__ void __launch_bounds__(kFew* kParts, 1)
    statistics_of_images(const A* __restrict__ partial, Statistics<A> s, const A* __restrict__ gamma,
                         const A* __restrict__ beta, A* __restrict__ squeezed, Images shape) {
  begin();
  constexpr int kKept = 4;  // means of images that a thread keeps
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const bool there = channel < shape.real();
  const ImageParts<A> parts{partial, there ? channel : 0, shape};
  const int images = static_cast<int>(shape.images), first = threadIdx.x / kFew;
  const A rows = A(shape.rows * shape.fold), scale = gamma[parts.channel], shift = beta[parts.channel];
  const auto running = s.running(parts.channel);
  Merged<A> own = {};
  A kept[kKept] = {};
  const auto read = [&](int image) {
    const Merged<A> one[1] = {parts.of(image)};
    own.add(one);
    return one[0].mean;
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (first + k * kParts < images) kept[k] = read(first + k * kParts);
  }
  for (int image = first + kKept * kParts; image < images; image += kParts) read(image);
  const Merged<A> all = own.over_threads_of(rows * A(images));
  if (!there) return;
  const A var = all.m2 / all.rows, spread = times(scale, s.of(var));
  if (threadIdx.x < kFew) s.write(channel, running, all.mean, var, all.rows);
  const auto write = [&](int image, A mean) {
    squeezed[image * shape.real() + channel] = times_plus(less(mean, all.mean), spread, shift);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (first + k * kParts < images) write(first + k * kParts, kept[k]);
  }
  for (int image = first + kKept * kParts; image < images; image += kParts) write(image, parts.of(image).mean);
}

template <typename T, int V, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    activated_sums(const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                   const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                   const Sum<T>* __restrict__ rstd, ImageSums<Sum<T>, 1> result, Sum<T> alpha,
                   Images shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  A sums[1][V] = {};
  if (at.left > 0) {
    const Affine<V, A> affine(gamma, beta, mean, rstd, at, shape);
    auto add = [&](const Pack<T, V>& a) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A z = times_plus(less(wide(a.value[i]), affine.middle[i]), affine.scale[i],
                               affine.shift[i]);
        sums[0][i] += activated<act, T>(z, alpha);
      }
    };
    const T* const from = x + at.channel;
    each_turn<true>(shape, at.row, [&](int64_t first, int count) {
      Pack<T, V> rows[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= count) break;
        load<whole>(rows[u], from + (first + int64_t{u} * shape.height()) * shape.channels, at.left);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u < count) add(rows[u]);
      }
    });
  }
  write_image_sums<V>(sums, result, shape);
}

template <typename T, int V, bool whole, Activation act, bool residual, bool relu, bool bits>
__global__ void __launch_bounds__(kThreads, kResident)
    excited(const T* x, const T* more, const Sum<T>* __restrict__ gamma,
            const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
            const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ gate, T* y,
            uint8_t* __restrict__ mask, Sum<T> alpha, Images shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  A factor[V];
  load_columns(factor, gate + at.image * shape.real(), at, shape);
  const Affine<V, A> affine(gamma, beta, mean, rstd, at, shape);
  auto write = [&](int64_t row, const Pack<T, V>& a, const Pack<T, V>& b) {
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
    store<whole>(y + row * shape.channels + at.channel, out, at.left);
    if constexpr (bits) mask[row * shape.packs + at.pack] = passing<Activation::kRelu>(out);
  };
  each_turn<false>(shape, at.row, [&](int64_t first, int count) {
    Pack<T, V> a[kUnroll], b[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
      load_own<whole>(a[u], x + i, at.left);
      if constexpr (residual) load_own<whole>(b[u], more + i, at.left);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      write(first + int64_t{u} * shape.height(), a[u], b[u]);
    }
  });
}

constexpr int kGateSums = 5;  // dy v; dy p, dy p (x - mean), p, p (x - mean)

template <typename T, int V, bool whole, Activation act, bool bits, bool summed>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_image_sums(const T* __restrict__ dy, const T* __restrict__ dy2, const T* __restrict__ x,
                        const uint8_t* __restrict__ mask, T* __restrict__ dresidual,
                        const Sum<T>* __restrict__ gamma, const Sum<T>* __restrict__ beta,
                        const Sum<T>* __restrict__ mean, const Sum<T>* __restrict__ rstd,
                        ImageSums<Sum<T>, kGateSums> result, Sum<T> alpha, Images shape) {
  using A = Sum<T>;
  begin();
  constexpr bool kPlain = act == Activation::kNone;
  const Place at(shape, V);
  A sums[kGateSums][V] = {};
  if (at.left > 0) {
    Affine<V, A> affine;
    load_columns(affine.middle, mean, at, shape);
    if constexpr (!kPlain) affine.load(gamma, beta, rstd, at, shape);
    int rows = 0;
    auto add = [&](const Pack<T, V>& g, const Pack<T, V>& a) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A apart = less(wide(a.value[i]), affine.middle[i]), d = wide(g.value[i]);
        if constexpr (kPlain) {
          sums[1][i] += d;
          sums[2][i] = times_plus(d, apart, sums[2][i]);
          sums[4][i] += apart;
          continue;
        }
        const A z = times_plus(apart, affine.scale[i], affine.shift[i]);
        const A through = before<act, T>(d, z, alpha), slope = before<act, T>(A(1), z, alpha);
        sums[0][i] += d * activated<act, T>(z, alpha);
        sums[1][i] += through;
        sums[2][i] = times_plus(through, apart, sums[2][i]);
        sums[3][i] += slope;
        sums[4][i] = times_plus(slope, apart, sums[4][i]);
      }
    };
    each_turn<false>(shape, at.row, [&](int64_t first, int count) {
      Pack<T, V> g[kUnroll], more[kUnroll], a[kUnroll];
      uint8_t through[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= count) break;
        const int64_t row = first + int64_t{u} * shape.height();
        const int64_t i = row * shape.channels + at.channel;
        load<whole>(g[u], dy + i, at.left);
        if constexpr (summed) load<whole>(more[u], dy2 + i, at.left);
        if constexpr (bits) through[u] = __ldg(mask + row * shape.packs + at.pack);
        load<whole>(a[u], x + i, at.left);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= count) break;
        if constexpr (bits) {
#pragma unroll
          for (int k = 0; k < V; ++k) {  // rounded as if each were apart
            if constexpr (summed) {
              g[u].value[k] = narrow<T>(wide(g[u].value[k]) + wide(more[u].value[k]));
            }
            if ((through[u] >> k & 1) == 0) g[u].value[k] = narrow<T>(A(0));
          }
          const int64_t row = first + int64_t{u} * shape.height();
          store<whole>(dresidual + row * shape.channels + at.channel, g[u], at.left);
        }
        add(g[u], a[u]);
      }
      rows += count;
    });
    if constexpr (kPlain) {  // v is x's affine image, so its sum is of the others, and p is 1
      affine.load(gamma, beta, rstd, at, shape);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums[0][i] = times_plus(affine.scale[i], sums[2][i], affine.shift[i] * sums[1][i]);
        sums[3][i] = A(rows);
      }
    }
  }
  write_image_sums<V>(sums, result, shape);
}

// Of each channel, over the images.
template <typename A>
__global__ void __launch_bounds__(kFew* kParts, 1)
    gated_parameters(const A* __restrict__ gate, const A* __restrict__ lift,
                     const A* __restrict__ sums, const A* __restrict__ rstd, A* __restrict__ dgamma,
                     A* __restrict__ dbeta, Images shape) {
  begin();
  const int64_t channel = int64_t{blockIdx.x} * kFew + threadIdx.x % kFew;
  const int64_t from = channel < shape.real() ? channel : 0, all = shape.images * shape.real();
  const int images = static_cast<int>(shape.images);
  const A spread = rstd[from];
  const auto total = over_parts_of<2, A>(images, [&](int image) {
    const int64_t i = image * shape.real() + from;
    const A g = gate[i], l = lift[i];
    return Terms<2, A>{g * sums[i] + l * sums[2 * all + i], g * sums[all + i] + l * sums[3 * all + i]};
  });
  if (channel >= shape.real() || threadIdx.x >= kFew) return;
  dbeta[channel] = total.of[0];
  dgamma[channel] = total.of[1] * spread;
}

template <typename T, int V, bool whole, Activation act>
__global__ void __launch_bounds__(kThreads, kResident)
    gated_gradient(const T* dy, const T* x, const Sum<T>* __restrict__ gamma,
                   const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                   const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ gate,
                   const Sum<T>* __restrict__ lift, const Sum<T>* __restrict__ dgamma,
                   const Sum<T>* __restrict__ dbeta, T* dx, Sum<T> alpha, Images shape) {
  using A = Sum<T>;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  A factor[V], share[V], slope[V], level[V];
  load_columns(slope, dgamma, at, shape);
  load_columns(level, dbeta, at, shape);
  load_columns(factor, gate + at.image * shape.real(), at, shape);
  load_columns(share, lift + at.image * shape.real(), at, shape);
  const Affine<V, A> affine(gamma, beta, mean, rstd, at, shape);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A each = A(1) / (A(shape.rows * shape.fold) * A(shape.images));
    slope[i] = affine.scale[i] * affine.spread[i] * (slope[i] * each);
    level[i] = affine.scale[i] * (level[i] * each);
  }
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
  each_turn<true>(shape, at.row, [&](int64_t first, int count) {
    Pack<T, V> g[kUnroll], a[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      const int64_t i = (first + int64_t{u} * shape.height()) * shape.channels + at.channel;
      load_own<whole>(g[u], dy + i, at.left);
      load_own<whole>(a[u], x + i, at.left);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      write((first + int64_t{u} * shape.height()) * shape.channels + at.channel, g[u], a[u]);
    }
  });
}

// ---- launching --------------------------------------------------------------------------------------------

template <typename T>
int squeeze_plain(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const RelayWgradNormCall wide = folded_images<T>(call, 2);
  const Images shape = shape_of_images<T>(wide, 2);
  auto* const partial = static_cast<A*>(call.workspace);
  const auto* const x = static_cast<const T*>(call.x);
  const Statistics<A> s = statistics_of<T>(call);
  const auto kernel = is_whole<T>(wide.channels, {x}) ? image_moments<T, V, true>
                                                     : image_moments<T, V, false>;
  cudaError_t error = launch(kernel, grid_of(shape), kThreads, stream, x, partial, shape);
  if (error != cudaSuccess) return finished(error);
  return finished(launch(statistics_of_images<A>, few_grid(shape), kFew * kParts, stream,
                         static_cast<const A*>(partial), s, static_cast<const A*>(call.gamma),
                         static_cast<const A*>(call.beta), static_cast<A*>(call.squeezed), shape));
}

template <typename T, Activation act>
int squeeze_activated(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  RelayWgradNormCall batch = call;
  batch.images = 1;
  batch.rows = call.images * call.rows;
  batch = folded<T>(batch);
  const RelayWgradNormCall wide = folded_images<T>(call, 1);
  const Rows rows = shape_of<V, Rows>(batch, sizeof(A));
  const Images shape = shape_of_images<T>(wide, 1);
  auto* const partial = static_cast<A*>(call.workspace);
  const auto* const x = static_cast<const T*>(call.x);
  const Statistics<A> s = statistics_of<T>(call);
  const auto of_batch = is_whole<T>(batch.channels, {x}) ? launch_moments<T, true, Rows>
                                                        : launch_moments<T, false, Rows>;
  cudaError_t error = of_batch(x, partial, rows, stream);
  if (error != cudaSuccess) return finished(error);
  error = finish_statistics(partial, s, rows, stream);
  if (error != cudaSuccess) return finished(error);
  const ImageSums<A, 1> result{{static_cast<A*>(call.squeezed)}, partial, A(1) / A(call.rows)};
  const auto of_images = is_whole<T>(wide.channels, {x}) ? activated_sums<T, V, true, act>
                                                         : activated_sums<T, V, false, act>;
  error = launch(of_images, grid_of(shape), kThreads, stream, x, static_cast<const A*>(call.gamma),
                 static_cast<const A*>(call.beta), static_cast<const A*>(s.mean),
                 static_cast<const A*>(s.rstd), result, static_cast<A>(call.alpha), shape);
  return finished(error != cudaSuccess ? error : finish_image_sums(result, shape, stream));
}

template <typename T, Activation act>
int squeeze(const RelayWgradNormCall& call, cudaStream_t stream) {
  if constexpr (act == Activation::kNone) {
    return squeeze_plain<T>(call, stream);
  } else {
    return squeeze_activated<T, act>(call, stream);
  }
}

template <typename T, Activation act, bool residual, bool relu, bool bits>
int excite(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const RelayWgradNormCall wide = folded_images<T>(call, 0);
  const Images shape = writing_images<T>(wide);
  const auto kernel = is_whole<T>(wide.channels, {call.x, call.residual, call.out})
                          ? excited<T, V, true, act, residual, relu, bits>
                          : excited<T, V, false, act, residual, relu, bits>;
  return finished(launch(kernel, grid_of(shape), kThreads, stream, static_cast<const T*>(call.x),
                         static_cast<const T*>(call.residual), static_cast<const A*>(call.gamma),
                         static_cast<const A*>(call.beta), static_cast<const A*>(call.mean),
                         static_cast<const A*>(call.rstd), static_cast<const A*>(call.gate),
                         static_cast<T*>(call.out), static_cast<uint8_t*>(call.new_mask),
                         static_cast<A>(call.alpha), shape));
}

template <typename T, Activation act, bool bits, bool summed>
int gate_sums(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const RelayWgradNormCall wide = folded_images<T>(call, kGateSums);
  const Images shape = shape_of_images<T>(wide, kGateSums);
  auto* const sums = static_cast<A*>(call.new_sums);
  const int64_t all = call.images * call.channels;
  const ImageSums<A, kGateSums> result{
      {static_cast<A*>(call.squeezed), sums, sums + all, sums + 2 * all, sums + 3 * all},
      static_cast<A*>(call.workspace), A(1)};
  const auto kernel = is_whole<T>(wide.channels, {call.x, call.dy, call.dy2, call.dresidual})
                          ? gradient_image_sums<T, V, true, act, bits, summed>
                          : gradient_image_sums<T, V, false, act, bits, summed>;
  const cudaError_t error =
      launch(kernel, grid_of(shape), kThreads, stream, static_cast<const T*>(call.dy),
             static_cast<const T*>(call.dy2), static_cast<const T*>(call.x),
             static_cast<const uint8_t*>(call.mask), static_cast<T*>(call.dresidual),
             static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
             static_cast<const A*>(call.mean), static_cast<const A*>(call.rstd), result,
             static_cast<A>(call.alpha), shape);
  return finished(error != cudaSuccess ? error : finish_image_sums(result, shape, stream));
}

template <typename T, Activation act>
int gate_backward(const RelayWgradNormCall& call, cudaStream_t stream) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  const RelayWgradNormCall wide = folded_images<T>(call, 0);
  const Images shape = writing_images<T>(wide);
  const auto *gate = static_cast<const A*>(call.gate), *lift = static_cast<const A*>(call.lift);
  const auto* const rstd = static_cast<const A*>(call.rstd);
  auto *dgamma = static_cast<A*>(call.first), *dbeta = static_cast<A*>(call.second);
  const cudaError_t error =
      launch(gated_parameters<A>, few_grid(shape), kFew * kParts, stream, gate, lift,
             static_cast<const A*>(call.sums), rstd, dgamma, dbeta, shape);
  if (error != cudaSuccess) return finished(error);
  const auto kernel = is_whole<T>(wide.channels, {call.x, call.dy, call.out})
                          ? gated_gradient<T, V, true, act>
                          : gated_gradient<T, V, false, act>;
  return finished(launch(kernel, grid_of(shape), kThreads, stream, static_cast<const T*>(call.dy),
                         static_cast<const T*>(call.x), static_cast<const A*>(call.gamma),
                         static_cast<const A*>(call.beta), static_cast<const A*>(call.mean), rstd,
                         gate, lift, static_cast<const A*>(dgamma), static_cast<const A*>(dbeta),
                         static_cast<T*>(call.out), static_cast<A>(call.alpha), shape));
}

}  // namespace
