// ---- few filters of one tap: gradients as sums of single products -------------------------------------------
//
// With K × 8 multiplications for 16 bytes memory is what they wait for, and fragments would be gathered for
// nothing.  A thread has 8 channels of every some pixels, whose filters, or their gradients, are in registers.

namespace {

template <typename Type, int K_>
struct Point {
  using T = Type;
  static constexpr int K = K_, THREADS = 256, BYTES = 8 * K * THREADS * 4;
};

// Whether pixels of the image are those of the result, and a block's threads have all channels alike.
template <typename Z>
inline bool is_point(const WideCall& z) {
  if constexpr (Z::RS > 1 || Z::ST > 1 || Z::PH > 0 || Z::PW > 0) return false;
  return z.h == z.p && z.w == z.q && 256 * 8 % z.c == 0;
}

template <typename Z>
__device__ inline void read_point(float (&to)[Z::K], const typename Z::T* grad) {
#pragma unroll
  for (int k = 0; k < Z::K; ++k) to[k] = wide(grad[k]);
}

template <typename T>
__device__ inline void widen_8(float (&to)[8], uint4 bits) {
  const unsigned four[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = both_of<T>(four[i]);
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}

template <typename Z, typename After>
__global__ void __launch_bounds__(Z::THREADS)
    point_gradient(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ weight,
                   typename Z::T* __restrict__ out, WideCall z, int64_t pixels) {
  using T = typename Z::T;
  const int chunks = static_cast<int>(z.c) / 8, c = static_cast<int>(threadIdx.x) % chunks * 8;
  const int beside = Z::THREADS / chunks;
  const auto* const source = static_cast<const T*>(z.source);
  after_the_one_before();
  float filters[Z::K][8];
#pragma unroll
  for (int k = 0; k < Z::K; ++k) widen_8<T>(filters[k], global_16(weight + k * z.c + c));
  uint4 operand = make_uint4(0, 0, 0, 0);
  if constexpr (After::kPerChannel) operand = global_16(source + c);
  const int64_t step = int64_t{gridDim.x} * beside;
#pragma unroll 2
  for (int64_t pixel = int64_t{blockIdx.x} * beside + threadIdx.x / chunks; pixel < pixels; pixel += step) {
    float of_pixel[Z::K], sums[8] = {}, with[8];
    read_point<Z>(of_pixel, grad + pixel * Z::K);
#pragma unroll
    for (int k = 0; k < Z::K; ++k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += of_pixel[k] * filters[k][i];
    }
    const int64_t to = pixel * z.c + c;
    if constexpr (After::kWhole) operand = global_16(source + to);
    widen_8<T>(with, operand);
    unsigned four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four[i] = two_of<T>(After::of(sums[2 * i], with[2 * i]), After::of(sums[2 * i + 1], with[2 * i + 1]));
    }
    *reinterpret_cast<uint4*>(out + to) = make_uint4(four[0], four[1], four[2], four[3]);
  }
}

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS)
    point_filters(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                  float* __restrict__ parts, WideCall z, int64_t pixels) {
  using T = typename Z::T;
  const int chunks = static_cast<int>(z.c) / 8, c = static_cast<int>(threadIdx.x) % chunks * 8;
  const int beside = Z::THREADS / chunks;
  after_the_one_before();
  float sums[Z::K][8] = {};
  const int64_t step = int64_t{gridDim.x} * beside;
#pragma unroll 4
  for (int64_t pixel = int64_t{blockIdx.x} * beside + threadIdx.x / chunks; pixel < pixels; pixel += step) {
    float of_pixel[Z::K], eight[8];
    read_point<Z>(of_pixel, grad + pixel * Z::K);
    widen_8<T>(eight, global_16(image + pixel * z.c + c));
#pragma unroll
    for (int k = 0; k < Z::K; ++k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[k][i] += of_pixel[k] * eight[i];
    }
  }
  const Spot lines = shared_memory();
#pragma unroll
  for (int k = 0; k < Z::K; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      write_f(lines + static_cast<Spot>(((k * 8 + i) * Z::THREADS + threadIdx.x) * 4), sums[k][i]);
    }
  }
  __syncthreads();
  float* const mine = parts + blockIdx.x * (Z::K * z.c);
  for (int which = threadIdx.x; which < Z::K * static_cast<int>(z.c); which += Z::THREADS) {
    const int k = which / static_cast<int>(z.c), channel = which % static_cast<int>(z.c);
    float sum = 0;
    for (int j = 0; j < beside; ++j) {
      const int thread = j * chunks + channel / 8;
      sum += read_f(lines + static_cast<Spot>(((k * 8 + channel % 8) * Z::THREADS + thread) * 4));
    }
    mine[which] = sum;
  }
}

template <typename Z, typename After>
int point_dgrad(const WideCall& z, cudaStream_t stream) {
  using P = Point<typename Z::T, Z::K>;
  using T = typename Z::T;
  const int64_t pixels = z.n * z.h * z.w, most = int64_t{multiprocessors()} * 8;
  const int64_t blocks = ceil_of64(pixels * (z.c / 8), P::THREADS);
  return finished(launch_with(point_gradient<P, After>, dim3(static_cast<unsigned>(blocks < most ? blocks : most)),
                              P::THREADS, 0, stream, static_cast<const T*>(z.first),
                              static_cast<const T*>(z.second), static_cast<T*>(z.out), z, pixels));
}

template <typename Z, typename Out>
int point_wgrad(const WideCall& z, cudaStream_t stream, int64_t* wanted) {
  using P = Point<typename Z::T, Z::K>;
  using T = typename Z::T;
  // Of the problem alone, so that sums are the same on all devices.
  const int64_t pixels = z.n * z.h * z.w, count = Z::K * z.c, most = int64_t{RW_DIRECT_BLOCKS} * 2;
  const int64_t blocks = ceil_of64(pixels * (z.c / 8), P::THREADS), parts = blocks < most ? blocks : most;
  if (wanted != nullptr) return *wanted = parts * count * 4, 0;
  cudaError_t error = launch_with(point_filters<P>, dim3(static_cast<unsigned>(parts)), P::THREADS, P::BYTES,
                                  stream, static_cast<const T*>(z.first), static_cast<const T*>(z.second),
                                  static_cast<float*>(z.workspace), z, pixels);
  if (error == cudaSuccess) error = sum_parts<Out>(z, count, static_cast<int>(parts), stream);
  return finished(error);
}

}  // namespace
