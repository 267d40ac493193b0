// CUDA kernels on the CPU: what g++ needs to build them, for tests of what they compute.  Blocks run one
// after another, or, where they wait for each other, all at once; asm is left out, so copies are made when
// they are asked for.  What runs them is one of two devices, compiled once for all kernels:
// `cuda_fibers.cc`, and `cuda_threads.cc` where ThreadSanitizer looks on.

#ifndef RW_CUDA_EMULATED
#define RW_CUDA_EMULATED

#include <cuda_runtime_api.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <vector>

#undef __launch_bounds__
#define __launch_bounds__(...)
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
#undef __shared__
#define __shared__ static
#ifndef RW_OF_A_THREAD
#define RW_OF_A_THREAD  // of all; a fiber's are put there when it is entered
#endif

struct Index {
  unsigned x, y, z;
};

extern RW_OF_A_THREAD Index threadIdx, blockIdx;
extern Index gridDim;

namespace emulated {

extern int launches, launched_together;  // kernels, and those whose blocks ran at once

void run(dim3 size, int threads, size_t bytes, bool together, const std::function<void()>& kernel);
void wait_for_block();
void wait_for_warp();
void wait_for_grid();
double* exchanged();  // a place for each of a block's threads
uint4* shared();      // a block's memory that is asked for by size

}  // namespace emulated

inline void __syncthreads() { emulated::wait_for_block(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int step) {
  double* const exchanged = emulated::exchanged();
  std::memcpy(&exchanged[threadIdx.x], &value, sizeof(T));
  emulated::wait_for_warp();
  T other;
  std::memcpy(&other, &exchanged[threadIdx.x ^ step], sizeof(T));
  emulated::wait_for_warp();
  return other;
}

namespace cooperative_groups {
struct Grid {
  void sync() { emulated::wait_for_grid(); }
};
inline Grid this_grid() { return {}; }
}  // namespace cooperative_groups

// A device ends a kernel whose access does not lie at a multiple of itself; here NaNs are read.
template <typename T>
T __ldg(const T* at) {
  T read;
  const bool lies = reinterpret_cast<std::uintptr_t>(at) % alignof(T) == 0;
  lies ? std::memcpy(&read, at, sizeof(T)) : std::memset(&read, 255, sizeof(T));
  return read;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  unsigned char bytes[8];
  std::memcpy(bytes, &a, 4);
  std::memcpy(bytes + 4, &b, 4);
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= unsigned{bytes[(which >> (4 * i)) & 7]} << (8 * i);
  return out;
}
using std::exp;
using std::max;
using std::min;
using std::sqrt;

#endif
