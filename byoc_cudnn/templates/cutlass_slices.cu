// ---- the second half of a weight gradient: slices of its sum, added in order ------------------------

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

__device__ inline void store(float* at, float value) { *at = value; }
__device__ inline void store(__half* at, float value) { *at = __float2half_rn(value); }
__device__ inline void store(__nv_bfloat16* at, float value) { *at = __float2bfloat16_rn(value); }

template <typename Element>
__global__ void __launch_bounds__(256)
    add_slices(const float* __restrict__ parts, Element* __restrict__ out, int64_t count, int slices) {
  const int64_t step = int64_t{256} * gridDim.x;
  for (int64_t i = int64_t{256} * blockIdx.x + threadIdx.x; i < count; i += step) {
    float sum = parts[i];
    for (int slice = 1; slice < slices; ++slice) sum += parts[slice * count + i];
    store(out + i, sum);
  }
}

}  // namespace

// The result's dtype: 0 float16, 1 bfloat16, 2 float32.  Returns 0 or a cudaError_t, negated.
extern "C" int relay_wgrad_cutlass_slices(const float* parts, void* out, int dtype, int64_t count,
                                          int slices, cudaStream_t stream) {
  const int64_t wanted = (count + 255) / 256;
  const unsigned blocks = static_cast<unsigned>(wanted < 4096 ? wanted : 4096);
  if (dtype == 0) {
    add_slices<<<blocks, 256, 0, stream>>>(parts, static_cast<__half*>(out), count, slices);
  } else if (dtype == 1) {
    add_slices<<<blocks, 256, 0, stream>>>(parts, static_cast<__nv_bfloat16*>(out), count, slices);
  } else {
    add_slices<<<blocks, 256, 0, stream>>>(parts, static_cast<float*>(out), count, slices);
  }
  return -static_cast<int>(cudaGetLastError());
}
