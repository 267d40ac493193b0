// ---- small parts of the kernels on tensor cores, and the sum of a gradient's parts -----------------------

namespace {

// A call whose sizes can be multiplied.
struct WideCall {
  int64_t n, d, h, w, c, k, planes, p, q;  // planes: of the result, where d are the data's
  const void *first, *second, *source;
  void *out, *workspace;
};

inline WideCall wide_call(const RelayWgradDirectCall& z) {
  return {z.n, z.d, z.h, z.w, z.c, z.k, z.z, z.p, z.q, z.first, z.second, z.source, z.result, z.workspace};
}

template <typename T>
__device__ inline unsigned two_of(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&both);
  }
}

template <typename T>
__device__ inline float2 both_of(unsigned bits) {
  T both[2];
  memcpy(both, &bits, sizeof(bits));
  return make_float2(wide(both[0]), wide(both[1]));
}

// Of eight numbers bits, among them a sign if one is NaN.
template <typename T>
__device__ inline unsigned nan_signs(uint4 v) {
  constexpr unsigned over = std::is_same_v<T, __half> ? 0x03ff03ffu : 0x007f007fu;  // to the sign
  auto of = [](unsigned bits) { return (bits & 0x7fff7fffu) + over; };
  return of(v.x) | of(v.y) | of(v.z) | of(v.w);
}

// Whether one of eight numbers is NaN.
template <typename T>
__device__ inline bool has_nan(uint4 v) {
  return (nan_signs<T>(v) & 0x80008000u) != 0;
}

__device__ inline uint4 global_16(const void* from) {
  return __ldg(reinterpret_cast<const uint4*>(from));
}

constexpr int ceil_of(int a, int b) { return (a + b - 1) / b; }

inline int64_t ceil_of64(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many blocks a multiprocessor of Hopper has at once, by shared memory and registers.
constexpr int resident_of(int bytes, int threads, int registers) {
  const int by_bytes = (227 << 10) / (bytes + 1024), by_registers = 65536 / (threads * registers);
  const int both = by_bytes < by_registers ? by_bytes : by_registers;
  return both < 1 ? 1 : both < 4 ? both : 4;
}

// Blocks of a gradient of filters, so that a large device is full; tests on CPUs have fewer.
#ifndef RW_DIRECT_BLOCKS
#define RW_DIRECT_BLOCKS 264
#endif

constexpr int64_t kMostTiles = int64_t{1} << 30;

inline int multiprocessors() {
  int device = 0, many = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&many, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;  // the launch will tell
  }
  return many;
}

// Bytes of shared memory that a block may have.
inline int most_shared() {
  int device = 0, bytes = 0;
  const bool is = cudaGetDevice(&device) == cudaSuccess &&
                  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
                      cudaSuccess;
  return is ? bytes : 0;
}

// How many columns of 16 bytes a row takes in shared memory, so that eight rows one after another
// begin at different banks.
constexpr int odd_of(int chunks) { return chunks | 1; }

// The sum of a gradient's parts, always in the same order: of 32 elements, 16 threads each.
constexpr int kBeside = 32, kTurns = 16;

template <typename T>
__global__ void __launch_bounds__(kBeside * kTurns)
    sum_of_parts(const float* __restrict__ parts, T* __restrict__ out, int64_t count, int many) {
  after_the_one_before();
  const int column = threadIdx.x % kBeside, turn = threadIdx.x / kBeside;
  const int64_t i = int64_t{blockIdx.x} * kBeside + column;
  const Spot sums = shared_memory();
  float sum = 0;
  if (i < count) {
#pragma unroll 4
    for (int part = turn; part < many; part += kTurns) sum += parts[part * count + i];
  }
  write_f(sums + static_cast<Spot>(threadIdx.x * 4), sum);
  __syncthreads();
  if (turn > 0 || i >= count) return;
#pragma unroll
  for (int j = 1; j < kTurns; ++j) sum += read_f(sums + static_cast<Spot>((j * kBeside + column) * 4));
  out[i] = narrow<T>(sum);
}

template <typename T>
inline cudaError_t sum_parts(const WideCall& z, int64_t count, int many,
                             cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_of64(count, kBeside));
  return launch_with(sum_of_parts<T>, dim3(blocks), kBeside * kTurns, kBeside * kTurns * 4, stream,
                     static_cast<const float*>(z.workspace), static_cast<T*>(z.out), count, many);
}

// Taps in depth of a kernel for volumes, and the planes of padding before the first.
template <typename Z>
constexpr int depth_taps = 1;
template <typename Z>
constexpr int depth_front = 0;

// A result's pixel and channel by single products, of what there is only: CG channels and KG filters in
// a group.  `in` is the image, or with `back` the result's gradient; `n` counts planes of volumes.
template <typename Z, bool back>
__device__ inline float alone(const typename Z::T* in, const typename Z::T* weight, const WideCall& z,
                              int cg, int kg, int64_t n, int row, int column, int channel) {
  const int height = static_cast<int>(back ? z.p : z.h), width = static_cast<int>(back ? z.q : z.w);
  const int64_t ins = back ? z.k : z.c;
  const int many = back ? kg : cg, group = channel / (back ? cg : kg);
  float sum = 0;
#pragma unroll 1
  for (int tap = 0; tap < Z::RS; ++tap) {
    const int r = tap / Z::S % Z::R, s = tap % Z::S;
    int64_t plane = n;
    if constexpr (depth_taps<Z> > 1) {
      const int64_t deep = n % z.planes * Z::ST - depth_front<Z> + tap / (Z::R * Z::S);
      if (deep < 0 || deep >= z.d) continue;
      plane = n / z.planes * z.d + deep;
    }
    int y = row * Z::ST - Z::PH + r * Z::DI, x = column * Z::ST - Z::PW + s * Z::DI;
    if constexpr (back) {
      y = row + Z::PH - r * Z::DI, x = column + Z::PW - s * Z::DI;
      if (y % Z::ST != 0 || x % Z::ST != 0) continue;
      y /= Z::ST, x /= Z::ST;
    }
    if (y < 0 || y >= height || x < 0 || x >= width) continue;
    const typename Z::T* const pixel = in + ((plane * height + y) * width + x) * ins + group * many;
#pragma unroll 1
    for (int i = 0; i < many; ++i) {
      const int64_t of = back ? (int64_t{group * many + i} * Z::RS + tap) * cg + channel % cg
                              : (int64_t{channel} * Z::RS + tap) * cg + i;
      sum += wide(pixel[i]) * wide(weight[of]);
    }
  }
  return sum;
}

// Eight channels of a result that have been written: where zeros that were multiplied with something
// that is no number made NaN, the number is put.
template <typename Z, typename After, bool back>
__device__ inline void mend(typename Z::T* out, int64_t at, const typename Z::T* in,
                            const typename Z::T* weight, const WideCall& z, int cg, int kg, int64_t n,
                            int row, int column, int channel) {
  const auto* const source = static_cast<const typename Z::T*>(z.source);
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    const float is = wide(out[at + i]);
    if (is == is) continue;
    const float sum = alone<Z, back>(in, weight, z, cg, kg, n, row, column, channel + i);
    float operand = 0;
    if constexpr (After::kPerChannel) operand = wide(source[channel + i]);
    if constexpr (After::kWhole) operand = wide(source[at + i]);
    out[at + i] = narrow<typename Z::T>(After::of(sum, operand));
  }
}

}  // namespace
