// ---- depthwise convolutions of any size, a thread for each element -----------------------------------------
//
// For what the kernels that are made for speed do not take: any multiplier, dilation and layout.

namespace {

struct Strides {
  int64_t image, row, column, channel;
};

__host__ __device__ inline Strides strides_of(bool nchw, int64_t rows, int64_t columns, int64_t channels) {
  if (nchw) return {channels * rows * columns, columns, 1, rows * columns};
  return {rows * columns * channels, columns * channels, channels, 1};
}

// The pixel that an index is: in memory's order, so that neighbours are read together.
struct Place {
  int64_t n;
  int row, column, channel;

  __device__ Place(int64_t i, bool nchw, int rows, int columns, int channels) {
    const int pixels = rows * columns;
    if (nchw) {
      const int pixel = static_cast<int>(i % pixels);
      const int64_t plane = i / pixels;
      n = plane / channels, channel = static_cast<int>(plane % channels);
      row = pixel / columns, column = pixel % columns;
    } else {
      const int64_t all = i / channels;
      const int pixel = static_cast<int>(all % pixels);
      channel = static_cast<int>(i % channels), n = all / pixels;
      row = pixel / columns, column = pixel % columns;
    }
  }
};

template <typename After, typename Out>
__device__ inline void write(const RelayWgradDirectCall& z, int64_t at, int channel, float sum) {
  float operand = 0.f;
  if constexpr (After::kReads) {
    operand = wide(static_cast<const Out*>(z.source)[After::kPerChannel ? channel : at]);
  }
  static_cast<Out*>(z.result)[at] = narrow<Out>(After::of(sum, operand));
}

template <typename T, typename Out, typename After>
__global__ void __launch_bounds__(kThreads) any_fprop(RelayWgradDirectCall z) {
  begin();
  const Strides x = strides_of(z.nchw, z.h, z.w, z.c);
  const auto* const data = static_cast<const T*>(z.first);
  const auto* const weight = static_cast<const T*>(z.second);
  const int64_t all = int64_t{z.n} * z.p * z.q * z.k, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const Place at(i, z.nchw, z.p, z.q, z.k);
    const T* const plane = data + at.n * x.image + at.channel / (z.k / z.groups) * x.channel;
    const T* const taps = weight + int64_t{at.channel} * z.r * z.s;
    float sum = 0.f;
    for (int r = 0; r < z.r; ++r) {
      const int h = at.row * z.stride[0] - z.top + r * z.dilation[0];
      if (h < 0 || h >= z.h) continue;
      for (int s = 0; s < z.s; ++s) {
        const int w = at.column * z.stride[1] - z.left + s * z.dilation[1];
        if (w < 0 || w >= z.w) continue;
        sum = fmaf(wide(plane[h * x.row + w * x.column]), wide(taps[r * z.s + s]), sum);
      }
    }
    write<After, Out>(z, i, at.channel, sum);
  }
}

template <typename T, typename Out, typename After>
__global__ void __launch_bounds__(kThreads) any_dgrad(RelayWgradDirectCall z) {
  begin();
  const Strides y = strides_of(z.nchw, z.p, z.q, z.k);
  const auto* const grad = static_cast<const T*>(z.first);
  const auto* const weight = static_cast<const T*>(z.second);
  const int multiplier = z.k / z.groups;
  const int64_t all = int64_t{z.n} * z.h * z.w * z.c, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
    const Place at(i, z.nchw, z.h, z.w, z.c);
    float sum = 0.f;
    for (int m = 0; m < multiplier; ++m) {
      const int64_t k = int64_t{at.channel} * multiplier + m;
      const T* const plane = grad + at.n * y.image + k * y.channel;
      const T* const taps = weight + k * z.r * z.s;
      for (int r = 0; r < z.r; ++r) {
        const int down = at.row + z.top - r * z.dilation[0];
        if (down < 0 || down % z.stride[0] != 0 || down / z.stride[0] >= z.p) continue;
        for (int s = 0; s < z.s; ++s) {
          const int across = at.column + z.left - s * z.dilation[1];
          if (across < 0 || across % z.stride[1] != 0 || across / z.stride[1] >= z.q) continue;
          const int64_t from = down / z.stride[0] * y.row + across / z.stride[1] * y.column;
          sum = fmaf(wide(plane[from]), wide(taps[r * z.s + s]), sum);
        }
      }
    }
    write<After, Out>(z, i, at.channel, sum);
  }
}

// A block for a tap of a filter; its threads' sums are added in a fixed order.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) any_wgrad(RelayWgradDirectCall z) {
  __shared__ float sums[kThreads];
  begin();
  const Strides x = strides_of(z.nchw, z.h, z.w, z.c), y = strides_of(z.nchw, z.p, z.q, z.k);
  const int tap = blockIdx.y, k = blockIdx.x, r = tap / z.s, s = tap % z.s, me = threadIdx.x;
  const T* const grad = static_cast<const T*>(z.first) + k * y.channel;
  const T* const data = static_cast<const T*>(z.second) + k / (z.k / z.groups) * x.channel;
  const int pixels = z.p * z.q;
  float sum = 0.f;
  for (int64_t n = 0; n < z.n; ++n) {
    for (int i = me; i < pixels; i += kThreads) {
      const int p = i / z.q, q = i % z.q;
      const int h = p * z.stride[0] - z.top + r * z.dilation[0];
      const int w = q * z.stride[1] - z.left + s * z.dilation[1];
      if (h < 0 || h >= z.h || w < 0 || w >= z.w) continue;
      sum = fmaf(wide(grad[n * y.image + p * y.row + q * y.column]),
                 wide(data[n * x.image + h * x.row + w * x.column]), sum);
    }
  }
  sums[me] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (me < half) sums[me] += sums[me + half];
    __syncthreads();
  }
  if (me == 0) static_cast<Out*>(z.result)[int64_t{k} * z.r * z.s + tap] = narrow<Out>(sums[0]);
}

inline bool nothing_wanted(const RelayWgradDirectCall& z) {
  if (z.wanted != nullptr) *z.wanted = 0;
  return z.wanted != nullptr;
}

inline dim3 blocks_of(int64_t elements) {
  const int64_t blocks = (elements + kThreads - 1) / kThreads;
  return dim3(static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20));
}

template <typename T, typename Out, typename After>
int depthwise_any_fprop(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (nothing_wanted(z)) return 0;
  return finished(launch(any_fprop<T, Out, After>, blocks_of(int64_t{z.n} * z.p * z.q * z.k), kThreads,
                         stream, z));
}

template <typename T, typename Out, typename After>
int depthwise_any_dgrad(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (nothing_wanted(z)) return 0;
  return finished(launch(any_dgrad<T, Out, After>, blocks_of(int64_t{z.n} * z.h * z.w * z.c), kThreads,
                         stream, z));
}

template <typename T, typename Out, typename After>
int depthwise_any_wgrad(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (nothing_wanted(z)) return 0;
  return finished(launch(any_wgrad<T, Out>, dim3(static_cast<unsigned>(z.k), z.r * z.s), kThreads,
                         stream, z));
}

}  // namespace
