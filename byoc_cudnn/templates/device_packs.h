// ---- packs: channels-last rows in accesses of 16 bytes --------------------------------------------------

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <initializer_list>
#include <type_traits>

namespace {

constexpr int kThreads = 256;

// What sums are made of.
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ inline float wide(float x) { return x; }
__device__ inline double wide(double x) { return x; }
__device__ inline float wide(__half x) { return __half2float(x); }
__device__ inline float wide(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ inline T narrow(Sum<T> x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// Channels of a thread.
template <typename T>
constexpr int kVector = 16 / sizeof(T);

template <typename T, int V>
struct alignas(V * sizeof(T)) Pack {
  T value[V];
};

// A pack, of which `left` elements are there; with `whole` all are, and it lies at 16 bytes.
template <bool whole, typename T, int V>
__device__ inline void load(Pack<T, V>& pack, const T* at, int64_t left) {
  if constexpr (whole) {
    static_assert(sizeof(Pack<T, V>) == 16);
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(at));
    memcpy(&pack, &bits, sizeof(bits));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) pack.value[i] = i < left ? at[i] : narrow<T>(Sum<T>(0));
  }
}

// The same of memory that this thread may write later (`overwrites` of a call): not on the way for what
// nobody writes while the kernel runs, so its pointer is not __restrict__ either.
template <bool whole, typename T, int V>
__device__ inline void load_own(Pack<T, V>& pack, const T* at, int64_t left) {
  if constexpr (whole) {
    static_assert(sizeof(Pack<T, V>) == 16);
    const uint4 bits = *reinterpret_cast<const uint4*>(at);
    memcpy(&pack, &bits, sizeof(bits));
  } else {
    load<false>(pack, at, left);
  }
}

template <bool whole, typename T, int V>
__device__ inline void store(T* at, const Pack<T, V>& pack, int64_t left) {
  if constexpr (whole) {
    uint4 bits;
    memcpy(&bits, &pack, sizeof(bits));
    *reinterpret_cast<uint4*>(at) = bits;
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < left) at[i] = pack.value[i];
    }
  }
}

// Hopper and what is newer launch a kernel while the one before it ends; here that has ended.
__device__ inline void begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The item that a block of a launch for many is of: `first` has the number of each item's first block.
__device__ inline int item_of(const uint32_t* first, int items) {
  int low = 0, high = items - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                   Arguments... arguments) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Whether accesses of 16 bytes fit.
template <typename T>
inline bool is_whole(int64_t channels, std::initializer_list<const void*> pointers) {
  bool fits = channels % kVector<T> == 0;
  for (const void* pointer : pointers) fits = fits && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  return fits;
}

inline int finished(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();  // it is reported; the next call is not to see it
  return -static_cast<int>(error);
}

}  // namespace
