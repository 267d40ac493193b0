// ---- small parts of the kernels on tensor cores, and the sum of a gradient's parts -----------------------

#include <type_traits>

namespace {

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

inline int multiprocessors() {
  int device = 0, many = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&many, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;  // the launch will tell
  }
  return many;
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
  if constexpr (std::is_same_v<T, __half>) {
    out[i] = __float2half_rn(sum);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    out[i] = __float2bfloat16_rn(sum);
  } else {
    out[i] = sum;
  }
}

template <typename T>
inline cudaError_t sum_parts(const RelayWgradFewCall& z, int64_t count, int many,
                             cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_of64(count, kBeside));
  return launch_with(sum_of_parts<T>, dim3(blocks), kBeside * kTurns, kBeside * kTurns * 4, stream,
                     static_cast<const float*>(z.workspace), static_cast<T*>(z.out), count, many);
}

inline int finished_with(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();  // it is reported; the next call is not to see it
  return -static_cast<int>(error);
}

}  // namespace
