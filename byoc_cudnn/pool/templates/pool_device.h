// ---- max pooling: windows of R × S pixels, SR and SS pixels apart ----------------------------------------

namespace {

// The first maximum of a window, channel by channel.  A NaN is one, and of several the last.
template <int R, int S, bool whole, typename T, int V>
__device__ inline void maximum(const T* image, const RelayWgradPoolCall& z, int top, int left,
                               int64_t remain, Sum<T> (&best)[V], uint8_t (&tap)[V]) {
  bool first = true;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = top + r;
    if (row < 0 || row >= z.h) continue;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int column = left + s;
      if (column < 0 || column >= z.w) continue;
      Pack<T, V> pack;
      load<Use::kAgain, whole>(pack, image + (int64_t{row} * z.w + column) * z.c, remain);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const Sum<T> value = wide(pack.value[i]);
        if (first || value > best[i] || value != value) {
          best[i] = value;
          tap[i] = static_cast<uint8_t>(r * S + s);
        }
      }
      first = false;
    }
  }
}

template <typename T, int R, int S, int SR, int SS, bool whole>
__global__ void __launch_bounds__(kThreads)
    pooled(const T* __restrict__ x, T* __restrict__ y, RelayWgradPoolCall z, int64_t packs) {
  constexpr int V = kVector<T>;
  begin();
  const int64_t all = z.n * z.p * z.q * packs;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t channel = i % packs * V, window = i / packs;
    const int q = static_cast<int>(window % z.q), p = static_cast<int>(window / z.q % z.p);
    const T* const image = x + window / (z.p * z.q) * z.h * z.w * z.c + channel;
    Sum<T> best[V];
    uint8_t tap[V];
    maximum<R, S, whole>(image, z, p * SR - z.top, q * SS - z.left, z.c - channel, best, tap);
    Pack<T, V> out;
#pragma unroll
    for (int c = 0; c < V; ++c) out.value[c] = narrow<T>(best[c]);
    store<whole>(y + window * z.c + channel, out, z.c - channel);
  }
}

// A block has a tile of the image, and a byte for each channel of each window that reaches into it.
// Where windows overlap a pixel adds their gradients, in the windows' order.
constexpr int kSide = 16, kWide = 8;  // pixels of a tile, threads side by side

__host__ __device__ constexpr int windows_of(int taps, int stride) { return (kSide + taps - 2) / stride + 1; }

template <typename T, int R, int S, int SR, int SS, bool whole>
__global__ void __launch_bounds__(kThreads)
    gradient(const T* __restrict__ dy, const T* __restrict__ x, T* __restrict__ dx,
             RelayWgradPoolCall z, int64_t packs, int columns, int groups) {
  using A = Sum<T>;
  constexpr int V = kVector<T>, kRows = windows_of(R, SR), kColumns = windows_of(S, SS);
  struct alignas(V) Taps {
    uint8_t of[V];
  };
  __shared__ Taps taps[kRows * kColumns][kWide];
  begin();
  const int group = blockIdx.x % groups, tile = blockIdx.x / groups;
  const int h0 = tile / columns * kSide, w0 = tile % columns * kSide;
  const int lane = threadIdx.x % kWide, place = threadIdx.x / kWide;
  const int64_t pack = int64_t{group} * kWide + lane, channel = pack * V, remain = z.c - channel;
  // The first window that reaches into the tile, also where there is none.
  auto first_of = [](int pixel, int before, int taken, int stride) {
    const int past = pixel + before - taken + stride;
    return past < stride ? 0 : past / stride;
  };
  const int p0 = first_of(h0, z.top, R, SR), q0 = first_of(w0, z.left, S, SS);
  for (int64_t n = blockIdx.y; n < z.n; n += gridDim.y) {
    const T* const image = x + n * z.h * z.w * z.c + channel;
    if (pack < packs) {
      for (int i = place; i < kRows * kColumns; i += kThreads / kWide) {
        const int p = p0 + i / kColumns, q = q0 + i % kColumns;
        const int top = p * SR - z.top, left = q * SS - z.left;
        if (p >= z.p || q >= z.q || top >= h0 + kSide || left >= w0 + kSide) continue;
        A best[V];
        Taps found;
        maximum<R, S, whole>(image, z, top, left, remain, best, found.of);
        taps[i][lane] = found;
      }
    }
    __syncthreads();
    if (pack < packs) {
      for (int i = place; i < kSide * kSide; i += kThreads / kWide) {
        const int h = h0 + i / kSide, w = w0 + i % kSide;
        if (h >= z.h || w >= z.w) continue;
        A sum[V] = {};
        const int p1 = first_of(h, z.top, R, SR), q1 = first_of(w, z.left, S, SS);
#pragma unroll
        for (int a = 0; a < (R + SR - 1) / SR; ++a) {
          const int p = p1 + a, r = h + z.top - p * SR;
          if (r < 0 || p >= z.p) continue;
#pragma unroll
          for (int b = 0; b < (S + SS - 1) / SS; ++b) {
            const int q = q1 + b, s = w + z.left - q * SS;
            if (s < 0 || q >= z.q) continue;
            Pack<T, V> g;
            load<Use::kAgain, whole>(g, dy + ((n * z.p + p) * z.q + q) * z.c + channel, remain);
            const Taps found = taps[(p - p0) * kColumns + q - q0][lane];
#pragma unroll
            for (int c = 0; c < V; ++c) {
              if (found.of[c] == r * S + s) sum[c] += wide(g.value[c]);
            }
          }
        }
        Pack<T, V> out;
#pragma unroll
        for (int c = 0; c < V; ++c) out.value[c] = narrow<T>(sum[c]);
        store<whole>(dx + ((n * z.h + h) * z.w + w) * z.c + channel, out, remain);
      }
    }
    __syncthreads();
  }
}

template <typename T, int R, int S, int SR, int SS>
int forward(const RelayWgradPoolCall& z, cudaStream_t stream) {
  const int64_t packs = (z.c + kVector<T> - 1) / kVector<T>;
  const int64_t blocks = (z.n * z.p * z.q * packs + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(blocks < (1 << 30) ? blocks : 1 << 30));
  const auto* x = static_cast<const T*>(z.x);
  auto* y = static_cast<T*>(z.out);
  return finished(
      is_whole<T>(z.c, {x, y})
          ? launch(pooled<T, R, S, SR, SS, true>, grid, kThreads, stream, x, y, z, packs)
          : launch(pooled<T, R, S, SR, SS, false>, grid, kThreads, stream, x, y, z, packs));
}

template <typename T, int R, int S, int SR, int SS>
int backward(const RelayWgradPoolCall& z, cudaStream_t stream) {
  const int64_t packs = (z.c + kVector<T> - 1) / kVector<T>;
  const int columns = static_cast<int>((z.w + kSide - 1) / kSide);
  const int rows = static_cast<int>((z.h + kSide - 1) / kSide);
  const int groups = static_cast<int>((packs + kWide - 1) / kWide);
  const dim3 grid(static_cast<unsigned>(groups) * rows * columns,
                  static_cast<unsigned>(z.n < 65535 ? z.n : 65535));
  const auto *x = static_cast<const T*>(z.x), *dy = static_cast<const T*>(z.dy);
  auto* dx = static_cast<T*>(z.out);
  return finished(is_whole<T>(z.c, {x, dy, dx})
                      ? launch(gradient<T, R, S, SR, SS, true>, grid, kThreads, stream, dy, x, dx, z,
                               packs, columns, groups)
                      : launch(gradient<T, R, S, SR, SS, false>, grid, kThreads, stream, dy, x, dx, z,
                               packs, columns, groups));
}

}  // namespace
