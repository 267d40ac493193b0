// ---- max pooling: windows of R × S pixels, SR and SS pixels apart ----------------------------------------

namespace {

// The first maximum of a window, channel by channel.
template <int R, int S, bool whole, typename T, int V>
__device__ inline void maximum(const T* image, const RelayWgradPoolCall& z, int top, int left,
                               int64_t remain, Best<T, V>& best) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = top + r;
    Pack<T, V> packs[S];
    bool there[S];
#pragma unroll
    for (int s = 0; s < S; ++s) {  // all loads of a row are under way before the first is used
      const int column = left + s;
      there[s] = row >= 0 && row < z.h && column >= 0 && column < z.w;
      if (there[s]) {
        load<whole>(packs[s], image + (int64_t{row} * z.w + column) * z.x_stride, remain);
      }
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
      if (there[s]) best.see(packs[s], r * S + s);
    }
  }
}

// A block has some of the packs of a row, of a few rows one after another: no index is divided in 64
// bits.  `each(image, row, column, channel)`.
constexpr int kFew = 128, kBand = 4;

template <int V, typename Each>
__device__ inline void each_pack(int64_t images, int rows, int columns, int packs, Each each) {
  const unsigned i = blockIdx.x * kFew + threadIdx.x;
  const int column = static_cast<int>(i / static_cast<unsigned>(packs));
  if (column >= columns) return;
  const int64_t channel = int64_t{i % static_cast<unsigned>(packs)} * V;
  const int first = static_cast<int>(blockIdx.y) * kBand;
  for (int64_t image = blockIdx.z; image < images; image += gridDim.z) {
    for (int row = first; row < first + kBand && row < rows; ++row) each(image, row, column, channel);
  }
}

inline dim3 grid_of(int64_t images, int64_t rows, int64_t columns, int packs) {
  return dim3(static_cast<unsigned>((columns * packs + kFew - 1) / kFew),
              static_cast<unsigned>((rows + kBand - 1) / kBand),
              static_cast<unsigned>(images < 65535 ? images : 65535));
}

template <typename T, int R, int S, int SR, int SS, bool whole>
__global__ void __launch_bounds__(kFew)
    pooled(const T* __restrict__ x, T* __restrict__ y, uint8_t* __restrict__ index,
           RelayWgradPoolCall z, int packs) {
  constexpr int V = kVector<T>;
  begin();
  each_pack<V>(z.n, static_cast<int>(z.p), static_cast<int>(z.q), packs,
               [&](int64_t n, int p, int q, int64_t channel) {
    const int64_t remain = z.c - channel, window = ((n * z.p + p) * z.q + q) * z.c + channel;
    Best<T, V> best;
    maximum<R, S, whole>(x + n * z.h * z.w * z.x_stride + channel, z, p * SR - z.top, q * SS - z.left,
                         remain, best);
    store<whole>(y + window, best.value, remain);
    if (index != nullptr) store_taps<whole>(index + window, best.taps(), remain);
  });
}

template <int R, int S, int SR, int SS, bool whole, typename T, typename TapsOf>
__device__ inline void gather(const T* dy, T* dx, const RelayWgradPoolCall& z, int64_t n, int h, int w,
                              int64_t channel, TapsOf taps_of) {
  Pack<T, kVector<T>> out;
  gather_from<R, S, SR, SS, whole>(out, dy, z, n, h, w, channel, taps_of);
  store<whole>(dx + ((n * z.h + h) * z.w + w) * z.c + channel, out, z.c - channel);
}

template <typename T, int R, int S, int SR, int SS, bool whole>
__global__ void __launch_bounds__(kFew)
    gradient_by_index(const T* __restrict__ dy, const uint8_t* __restrict__ index, T* __restrict__ dx,
                      RelayWgradPoolCall z, int packs) {
  begin();
  each_pack<kVector<T>>(z.n, static_cast<int>(z.h), static_cast<int>(z.w), packs,
                        [&](int64_t n, int h, int w, int64_t channel) {
    gather<R, S, SR, SS, whole>(dy, dx, z, n, h, w, channel, [&](auto& taps, int p, int q) {
      load_taps<whole>(taps, index + ((n * z.p + p) * z.q + q) * z.c + channel, z.c - channel);
    });
  });
}

// Without an index: a block has a tile of the image, and a byte for each channel of each window that
// reaches into it.
constexpr int kSide = 16, kWide = 8;  // pixels of a tile, threads side by side

__host__ __device__ constexpr int windows_of(int taps, int stride) { return (kSide + taps - 2) / stride + 1; }

template <typename T, int R, int S, int SR, int SS, bool whole>
__global__ void __launch_bounds__(kThreads)
    gradient(const T* __restrict__ dy, const T* __restrict__ x, T* __restrict__ dx,
             RelayWgradPoolCall z, int packs, int columns, int groups) {
  constexpr int V = kVector<T>, kRows = windows_of(R, SR), kColumns = windows_of(S, SS);
  __shared__ Taps<V> taps[kRows * kColumns][kWide];
  begin();
  const int group = blockIdx.x % groups, tile = blockIdx.x / groups;
  const int h0 = tile / columns * kSide, w0 = tile % columns * kSide;
  const int lane = threadIdx.x % kWide, place = threadIdx.x / kWide;
  const int64_t pack = int64_t{group} * kWide + lane, channel = pack * V, remain = z.c - channel;
  const int p0 = first_of(h0, z.top, R, SR), q0 = first_of(w0, z.left, S, SS);
  for (int64_t n = blockIdx.y; n < z.n; n += gridDim.y) {
    const T* const image = x + n * z.h * z.w * z.x_stride + channel;
    if (pack < packs) {
      for (int i = place; i < kRows * kColumns; i += kThreads / kWide) {
        const int p = p0 + i / kColumns, q = q0 + i % kColumns;
        const int top = p * SR - z.top, left = q * SS - z.left;
        if (p >= z.p || q >= z.q || top >= h0 + kSide || left >= w0 + kSide) continue;
        Best<T, V> best;
        maximum<R, S, whole>(image, z, top, left, remain, best);
        taps[i][lane] = best.taps();
      }
    }
    __syncthreads();
    if (pack < packs) {
      for (int i = place; i < kSide * kSide; i += kThreads / kWide) {
        const int h = h0 + i / kSide, w = w0 + i % kSide;
        if (h >= z.h || w >= z.w) continue;
        gather<R, S, SR, SS, whole>(dy, dx, z, n, h, w, channel, [&](Taps<V>& found, int p, int q) {
          found = taps[(p - p0) * kColumns + q - q0][lane];
        });
      }
    }
    __syncthreads();
  }
}

template <typename T, int R, int S, int SR, int SS, bool whole>
cudaError_t forward_by(const RelayWgradPoolCall& z, cudaStream_t stream) {
  const int packs = static_cast<int>((z.c + kVector<T> - 1) / kVector<T>);
  return launch(pooled<T, R, S, SR, SS, whole>, grid_of(z.n, z.p, z.q, packs), kFew, stream,
                static_cast<const T*>(z.x), static_cast<T*>(z.out), static_cast<uint8_t*>(z.index), z,
                packs);
}

template <typename T, int R, int S, int SR, int SS, bool whole>
cudaError_t backward_by(const RelayWgradPoolCall& z, cudaStream_t stream) {
  const int packs = static_cast<int>((z.c + kVector<T> - 1) / kVector<T>);
  const auto* dy = static_cast<const T*>(z.dy);
  auto* dx = static_cast<T*>(z.out);
  if (z.index != nullptr) {
    return launch(gradient_by_index<T, R, S, SR, SS, whole>, grid_of(z.n, z.h, z.w, packs), kFew,
                  stream, dy, static_cast<const uint8_t*>(z.index), dx, z, packs);
  }
  const int columns = static_cast<int>((z.w + kSide - 1) / kSide);
  const int rows = static_cast<int>((z.h + kSide - 1) / kSide), groups = (packs + kWide - 1) / kWide;
  const dim3 grid(static_cast<unsigned>(groups) * rows * columns,
                  static_cast<unsigned>(z.n < 65535 ? z.n : 65535));
  return launch(gradient<T, R, S, SR, SS, whole>, grid, kThreads, stream, dy,
                static_cast<const T*>(z.x), dx, z, packs, columns, groups);
}

template <typename T>
inline bool fits(const RelayWgradPoolCall& z) {
  return is_whole<T>(z.c, {z.x, z.dy, z.out}) && z.x_stride % kVector<T> == 0 &&
         reinterpret_cast<uintptr_t>(z.index) % kVector<T> == 0;
}

template <typename T, int R, int S, int SR, int SS>
int forward(const RelayWgradPoolCall& z, cudaStream_t stream) {
  return finished(fits<T>(z) ? forward_by<T, R, S, SR, SS, true>(z, stream)
                             : forward_by<T, R, S, SR, SS, false>(z, stream));
}

template <typename T, int R, int S, int SR, int SS>
int backward(const RelayWgradPoolCall& z, cudaStream_t stream) {
  return finished(fits<T>(z) ? backward_by<T, R, S, SR, SS, true>(z, stream)
                             : backward_by<T, R, S, SR, SS, false>(z, stream));
}

}  // namespace
