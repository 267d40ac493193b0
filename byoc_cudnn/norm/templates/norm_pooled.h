// ---- a normalization that a max pooling follows ---------------------------------------------------------
//
// What is normalized is not written: forward makes it where a window needs it, and backward gathers its
// gradient from the windows' gradients and the index of their maxima.  Every number is rounded where it
// would be stored, so results have the bits of both apart, but for the order of sums over pixels.

namespace {

using Windows = RelayWgradNormWindows;

// Windows that a thread has one below the other; threads of a block forward; cells of a thread that writes,
// and blocks of those, one above the other.
constexpr int kBand = 8, kNear = 128, kTurns = 2, kMostTall = 65535;

// What is not there is read at the border, so that no load waits for a question.  Not as max(min(at, last), 0):
// with the sum before it ptxas 13.0 makes one instruction of that for sm_90, whose results were wrong.
__device__ inline int nearest(int at, int64_t size) {
  const int last = static_cast<int>(size) - 1;
  return at < 0 ? 0 : at < last ? at : last;
}

// Maxima of a window's rows, of which the next window's first ones are some.
template <typename T, int V, bool whole, int R, int S>
struct Maxima {
  static constexpr bool kFewRows = R <= 4;
  Best<T, V> rows[kFewRows ? R : 1];

  // Of `count` rows of an image from `row` on, in the place of those from `first` on; all loads come before
  // what is made of them.  `made(pack)` is what is compared.
  template <int first, int count, typename Made>
  __device__ void read(const T* image, const Windows& z, int row, int left_column, int64_t left, Made made) {
    Pack<T, V> packs[count][S];
    bool there[count][S];
#pragma unroll
    for (int r = 0; r < count; ++r) {
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const int h = nearest(row + r, z.h), w = nearest(left_column + s, z.w);
        load<whole>(packs[r][s], image + (int64_t{h} * z.w + w) * z.c, left);
        there[r][s] = h == row + r && w == left_column + s;
      }
    }
#pragma unroll
    for (int r = 0; r < count; ++r) {
      rows[first + r] = Best<T, V>();
#pragma unroll
      for (int s = 0; s < S; ++s) {
        rows[first + r].see(made(packs[r][s]), s, there[r][s]);
      }
    }
  }
};

// ReLU of what is rounded already, two channels an instruction: a NaN stays, and -0 becomes 0.
template <typename T>
__device__ inline Pack<T, 8> relu_of_pairs(const Pack<T, 8>& pack) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Pair pairs[4], zeros;
  memcpy(pairs, &pack, sizeof(pairs));
  memset(&zeros, 0, sizeof(zeros));
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __hmax2_nan(pairs[i], zeros);
  Pack<T, 8> out;
  memcpy(&out, pairs, sizeof(out));
  return out;
}

// A thread has a pack of a column of windows, a band of them one after another.
template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
__global__ void __launch_bounds__(kNear, 4)
    normalized_pooled(const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                      const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                      const Sum<T>* __restrict__ rstd, T* __restrict__ y, uint8_t* __restrict__ index,
                      Sum<T> alpha, Windows z, unsigned packs, unsigned of_band) {
  using A = Sum<T>;
  constexpr int V = kVector<T>, kKept = R <= 4 && R > SR ? R - SR : 0;
  begin();
  const unsigned i = blockIdx.x * kNear + threadIdx.x, band = i / of_band, place = i % of_band;
  const int first = static_cast<int>(band) * kBand, q = static_cast<int>(place / packs);
  if (first >= z.p) return;
  const int64_t channel = int64_t{place % packs} * V, left = z.c - channel;
  A middle[V], scale[V], shift[V], spread[V];
  load_channels(middle, mean + channel, left);
  load_channels(scale, gamma + channel, left);
  load_channels(spread, rstd + channel, left);
  load_channels(shift, beta + channel, left);
#pragma unroll
  for (int c = 0; c < V; ++c) scale[c] = times(scale[c], spread[c]);
  const auto made = [&](const Pack<T, V>& a) {
    if constexpr (act == Activation::kRelu && sizeof(T) == 2) {
      return relu_of_pairs(
          result<Activation::kNone, Residual::kNone>(a, a, middle, scale, shift, alpha));
    } else {
      return result<act, Residual::kNone>(a, a, middle, scale, shift, alpha);
    }
  };
  const int column = q * SS - z.left, end = first + kBand < z.p ? first + kBand : static_cast<int>(z.p);
  for (int64_t n = blockIdx.y; n < z.n; n += gridDim.y) {
    const T* const image = x + n * z.h * z.w * z.c + channel;
    Maxima<T, V, whole, R, S> maxima;
    if constexpr (kKept > 0) {
      maxima.template read<SR, kKept>(image, z, first * SR - z.top, column, left, made);
    }
#pragma unroll 1
    for (int p = first; p < end; ++p) {
      const int row = p * SR - z.top;
      Best<T, V> best;
      if constexpr (maxima.kFewRows) {
#pragma unroll
        for (int r = 0; r < kKept; ++r) maxima.rows[r] = maxima.rows[r + SR];
        maxima.template read<kKept, R - kKept>(image, z, row + kKept, column, left, made);
#pragma unroll
        for (int r = 0; r < R; ++r) best.see(maxima.rows[r], r * S);
      } else {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          maxima.template read<0, 1>(image, z, row + r, column, left, made);
          best.see(maxima.rows[0], r * S);
        }
      }
      const int64_t window = ((n * z.p + p) * z.q + q) * z.c + channel;
      store<whole>(y + window, best.value, left);
      store_taps<whole>(index + window, best.taps(), left);
    }
  }
}

// Cells of SR × SS pixels, each of which begins where a window does, or would: a pixel has the same taps
// of the windows that reach it in each of them, and a window is read once for a cell.
struct Cells {
  Windows z;
  int p, q;  // the window that the first cell begins with
  Quotient across, down;
  unsigned count;
  Cells(const Windows& z, int sr, int ss)
      : z(z), p(z.top / sr), q(z.left / ss), across((z.w - 1 + z.left) / ss - q + 1),
        down((z.h - 1 + z.top) / sr - p + 1), count(static_cast<unsigned>(z.n) * down.by * across.by) {}
};

// Of a cell the windows' gradients and taps, and what its pixels were normalized of, all of them under way
// at once; of more than four windows each pixel reads its own, and of more than four pixels x is read then.
template <bool whole, int R, int S, int SR, int SS, typename T, int V>
struct Cell {
  static constexpr int kDown = (R + SR - 1) / SR, kAcross = (S + SS - 1) / SS;
  static constexpr bool kTogether = kDown * kAcross <= 4, kFewPixels = SR * SS <= 4;
  struct Window {
    Pack<T, V> g;
    Taps<V> taps;
  };
  static constexpr unsigned kOutside = ~0u;
  struct Pixel {
    Pack<T, V> x;
    unsigned at;  // of all images' pixels; kOutside
  };
  const T *dy, *from;
  const uint8_t* index;
  const Windows& z;
  int64_t channel;
  unsigned n;
  int p, q;  // the window that begins with it
  Window windows[kTogether ? kDown : 1][kTogether ? kAcross : 1];
  Pixel pixels[kFewPixels ? SR : 1][kFewPixels ? SS : 1];

  __device__ Cell(const T* dy, const uint8_t* index, const T* from, const Cells& cells, unsigned cell,
                  int64_t channel)
      : dy(dy), from(from), index(index), z(cells.z), channel(channel) {
    const unsigned line = cells.across.of(cell), image = cells.down.of(line);
    n = image;
    q = cells.q + static_cast<int>(cell - line * cells.across.by);
    p = cells.p + static_cast<int>(line - image * cells.down.by);
    if constexpr (kFewPixels) {
#pragma unroll
      for (int a = 0; a < SR; ++a) {
#pragma unroll
        for (int b = 0; b < SS; ++b) pixels[a][b] = pixel(a, b);
      }
    }
    if constexpr (kTogether) {
#pragma unroll
      for (int a = 0; a < kDown; ++a) {
#pragma unroll
        for (int b = 0; b < kAcross; ++b) windows[a][b] = window(a, b);
      }
    }
  }

  __device__ Pixel pixel(int a, int b) const {
    const int h = p * SR - z.top + a, w = q * SS - z.left + b;
    const int row = nearest(h, z.h), column = nearest(w, z.w);
    const unsigned at = (n * static_cast<unsigned>(z.h) + row) * static_cast<unsigned>(z.w) + column;
    Pixel found;
    load<whole>(found.x, from + at * z.c + channel, z.c - channel);
    found.at = (row == h) & (column == w) ? at : kOutside;
    return found;
  }

  // The window so many before, of which no tap is told where it is not there.
  __device__ Window window(int down, int across) const {
    const int row = nearest(p - down, z.p), column = nearest(q - across, z.q);
    const unsigned at = (n * static_cast<unsigned>(z.p) + row) * static_cast<unsigned>(z.q) + column;
    Window found;
    load<whole>(found.g, dy + at * z.c + channel, z.c - channel);
    load_taps<whole>(found.taps, index + at * z.c + channel, z.c - channel);
    found.taps.keep_if((row == p - down) & (column == q - across));
    return found;
  }

  // Calls `each(the gradient of what was normalized, x, where that is)` for all pixels.
  template <typename Each>
  __device__ void each_pixel(Each each) const {
#pragma unroll
    for (int a = 0; a < SR; ++a) {
#pragma unroll
      for (int b = 0; b < SS; ++b) {
        Gathered<T, V> sum;
#pragma unroll
        for (int down = kDown - 1; down >= 0; --down) {  // in the order of windows
#pragma unroll
          for (int across = kAcross - 1; across >= 0; --across) {
            const int r = a + down * SR, s = b + across * SS;
            if (r >= R || s >= S) continue;
            if constexpr (kTogether) {
              sum.see(windows[down][across].g, windows[down][across].taps, r * S + s);
            } else {
              const Window one = window(down, across);
              sum.see(one.g, one.taps, r * S + s);
            }
          }
        }
        Pack<T, V> g = sum.value();
        if constexpr (kFewPixels) {
          each(g, pixels[a][b].x, pixels[a][b].at);
        } else {
          const Pixel one = pixel(a, b);
          each(g, one.x, one.at);
        }
      }
    }
  }
};

template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
__global__ void __launch_bounds__(kThreads, kResident)
    sums_of_pooled(const T* __restrict__ dy, const uint8_t* __restrict__ index,
                   const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                   const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                   const Sum<T>* __restrict__ rstd, Sum<T>* __restrict__ partial, Sum<T> alpha,
                   Cells cells, Plain shape) {
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
    const unsigned turn = gridDim.y * shape.height();
#pragma unroll 1
    for (unsigned i = blockIdx.y * shape.height() + at.row; i < cells.count; i += turn) {
      const Cell<whole, R, S, SR, SS, T, V> cell(dy, index, x, cells, i, at.channel);
      cell.each_pixel([&](Pack<T, V>& g, const Pack<T, V>& a, unsigned) {
        add_gradient<act, mask, false>(g, g, a, a, 0, middle, scale, shift, alpha, plain, weighted);
      });
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[0][threadIdx.x * V + i] = plain[i];
    sums[1][threadIdx.x * V + i] = weighted[i];
  }
  __syncthreads();
  write_sums<V>(sums, partial, shape);
}

// Backwards, as all that writes.
template <typename T, bool whole, Activation act, int R, int S, int SR, int SS>
__global__ void __launch_bounds__(kThreads, kResident)
    gradient_of_pooled(const T* __restrict__ dy, const uint8_t* __restrict__ index,
                       const T* __restrict__ x, const Sum<T>* __restrict__ gamma,
                       const Sum<T>* __restrict__ beta, const Sum<T>* __restrict__ mean,
                       const Sum<T>* __restrict__ rstd, const Sum<T>* __restrict__ dgamma,
                       const Sum<T>* __restrict__ dbeta, T* __restrict__ dx, Sum<T> alpha,
                       Cells cells, Plain shape) {
  using A = Sum<T>;
  constexpr int V = kVector<T>;
  constexpr Mask mask = act == Activation::kNone ? Mask::kNone : Mask::kComputed;
  begin();
  const Place at(shape, V);
  if (at.left <= 0) return;
  A middle[V], scale[V], shift[V], slope[V], level[V];
  load_slopes<mask>(middle, scale, shift, slope, level, gamma, beta, mean, rstd, dgamma, dbeta, 0,
                    at, shape);
  const unsigned turn = gridDim.y * shape.height();
#pragma unroll 1
  for (unsigned i = blockIdx.y * shape.height() + at.row; i < cells.count; i += turn) {
    const Cell<whole, R, S, SR, SS, T, V> cell(dy, index, x, cells, cells.count - 1 - i, at.channel);
    cell.each_pixel([&](Pack<T, V>& g, const Pack<T, V>& a, unsigned to) {
      if (to == cell.kOutside) return;
      store<whole>(dx + to * shape.channels + at.channel,
                   gradient_of<act, mask, false>(g, a, a, middle, scale, shift, slope, level, alpha),
                   at.left);
    });
  }
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
  const auto packs = static_cast<unsigned>(shape.packs), of_band = static_cast<unsigned>(z.q) * packs;
  const int64_t threads = (z.p + kBand - 1) / kBand * of_band;
  const dim3 grid(static_cast<unsigned>((threads + kNear - 1) / kNear),
                  static_cast<unsigned>(z.n < 65535 ? z.n : 65535));
  return launch(normalized_pooled<T, whole, act, R, S, SR, SS>, grid, kNear, stream, x,
                static_cast<const A*>(call.gamma), static_cast<const A*>(call.beta),
                static_cast<const A*>(s.mean), static_cast<const A*>(s.rstd),
                static_cast<T*>(call.out), static_cast<uint8_t*>(call.new_mask),
                static_cast<A>(call.alpha), z, packs, of_band);
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
  const Cells cells(call.windows, SR, SS);
  cudaError_t error =
      launch(sums_of_pooled<T, whole, act, R, S, SR, SS>, grid_of(shape), kThreads, stream, dy, index,
             x, gamma, beta, mean, rstd, partial, static_cast<A>(call.alpha), cells, shape);
  if (error != cudaSuccess) return error;
  error = launch(gradient_of_parameters<A, Plain>, few_grid(shape), kFew * kParts, stream,
                 static_cast<const A*>(partial), rstd, dgamma, dbeta, shape);
  if (error != cudaSuccess) return error;
  Plain last = shape;
  const int64_t turns = (int64_t{cells.count} + kTurns * last.height() - 1) / (kTurns * last.height());
  last.blocks = static_cast<int>(turns < kMostTall ? turns : kMostTall);
  return launch(gradient_of_pooled<T, whole, act, R, S, SR, SS>, grid_of(last), kThreads, stream, dy,
                index, x, gamma, beta, mean, rstd, static_cast<const A*>(dgamma),
                static_cast<const A*>(dbeta), static_cast<T*>(call.out), static_cast<A>(call.alpha),
                cells, last);
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
