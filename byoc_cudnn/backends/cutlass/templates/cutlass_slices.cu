// ---- the second half of a weight gradient: slices of its sum, added in order ------------------------

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;

__device__ inline void store(float* at, float value) { *at = value; }
__device__ inline void store(__half* at, float value) { *at = __float2half_rn(value); }
__device__ inline void store(__nv_bfloat16* at, float value) { *at = __float2bfloat16_rn(value); }

// This kernel may be launched before the one that writes the slices has ended; here it has.
__device__ inline void wait_for_slices() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// For results of any count and alignment.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    add_single(const float* __restrict__ parts, Element* __restrict__ out, int64_t count, int slices) {
  wait_for_slices();
  const int64_t step = int64_t{kThreads} * gridDim.x;
  for (int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x; i < count; i += step) {
    float sum = parts[i];
    for (int slice = 1; slice < slices; ++slice) sum += parts[slice * count + i];
    store(out + i, sum);
  }
}

template <typename Element>
struct alignas(4 * sizeof(Element)) Four {
  Element value[4];
};

__device__ inline void add(float4& sum, const float4& more) {
  sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

// Four elements a thread.  Where there are many slices, `kGroups` threads share the four: each adds a
// range of the slices, and the first one their sums.
template <typename Element, int kGroups>
__global__ void __launch_bounds__(kThreads)
    add_fours(const float4* __restrict__ parts, Four<Element>* __restrict__ out, int64_t count,
              int slices) {
  constexpr int kWide = kThreads / kGroups;
  __shared__ float4 sums[kGroups][kWide];
  const int lane = threadIdx.x % kWide, group = threadIdx.x / kWide;
  const int64_t i = int64_t{kWide} * blockIdx.x + lane;
  const int first = slices * group / kGroups, last = slices * (group + 1) / kGroups;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  wait_for_slices();
  if (i < count) {
#pragma unroll 8
    for (int slice = first; slice < last; ++slice) add(sum, parts[slice * count + i]);
  }
  if (kGroups > 1) {
    sums[group][lane] = sum;
    __syncthreads();
    if (group != 0) return;
    for (int other = 1; other < kGroups; ++other) add(sum, sums[other][lane]);
  }
  if (i >= count) return;
  Four<Element> four;
  store(four.value, sum.x), store(four.value + 1, sum.y);
  store(four.value + 2, sum.z), store(four.value + 3, sum.w);
  out[i] = four;
}

// Hopper and what is newer launch it while the kernel before it ends.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), int64_t threads, cudaStream_t stream,
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
  config.gridDim = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <typename Element>
cudaError_t launch(const float* parts, void* out, int64_t count, int slices, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(out) % sizeof(Four<Element>) == 0 &&
                       reinterpret_cast<uintptr_t>(parts) % sizeof(float4) == 0;
  if (count % 4 != 0 || !aligned) {
    const int64_t threads = count < 4096 * kThreads ? count : 4096 * kThreads;
    return launch_kernel(add_single<Element>, threads, stream, parts, static_cast<Element*>(out), count,
                         slices);
  }
  const auto* in = reinterpret_cast<const float4*>(parts);
  auto* fours = static_cast<Four<Element>*>(out);
  count /= 4;
  if (slices < 8) {
    return launch_kernel(add_fours<Element, 1>, count, stream, in, fours, count, slices);
  }
  if (slices < 64) {
    return launch_kernel(add_fours<Element, 4>, 4 * count, stream, in, fours, count, slices);
  }
  return launch_kernel(add_fours<Element, 16>, 16 * count, stream, in, fours, count, slices);
}

}  // namespace

// The result's dtype: 0 float16, 1 bfloat16, 2 float32.  Returns 0 or a cudaError_t, negated.
extern "C" int relay_wgrad_cutlass_slices(const float* parts, void* out, int dtype, int64_t count,
                                          int slices, cudaStream_t stream) {
  const cudaError_t error = dtype == 0   ? launch<__half>(parts, out, count, slices, stream)
                            : dtype == 1 ? launch<__nv_bfloat16>(parts, out, count, slices, stream)
                                         : launch<float>(parts, out, count, slices, stream);
  if (error != cudaSuccess) cudaGetLastError();  // it is reported here; the next call is not to see it
  return -static_cast<int>(error);
}
