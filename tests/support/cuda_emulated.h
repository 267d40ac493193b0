// CUDA kernels on the CPU, a thread for each of theirs: what g++ needs to build them, for tests of what
// they compute.  Blocks run one after another, or, where they wait for each other, all at once; asm is
// left out, so copies are made when they are asked for.

#ifndef RW_CUDA_EMULATED
#define RW_CUDA_EMULATED

#include <cuda_runtime_api.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <thread>
#include <vector>

#undef __launch_bounds__
#define __launch_bounds__(...)
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
#undef __shared__
#define __shared__ static

struct Index {
  unsigned x, y, z;
};

inline thread_local Index threadIdx, blockIdx;
inline Index gridDim;

namespace emulated {

struct Block {
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<double> exchanged;
  std::vector<uint4> shared;

  Block(int threads, size_t bytes) : all(threads), exchanged(threads), shared(bytes / 16 + 1) {
    for (int first = 0; first < threads; first += 32) {
      warps.push_back(std::make_unique<std::barrier<>>(std::min(32, threads - first)));
    }
  }
};

inline thread_local Block* block;
inline std::barrier<>* grid;

template <typename Kernel>
void run(dim3 size, int threads, size_t bytes, bool together, Kernel kernel) {
  gridDim = {size.x, size.y, size.z};
  const unsigned blocks = size.x * size.y * size.z;
  auto thread = [&](unsigned b, int t, Block* mine) {
    blockIdx = {b % size.x, b / size.x % size.y, b / (size.x * size.y)};
    threadIdx = {static_cast<unsigned>(t), 0, 0};
    block = mine;
    kernel();
  };
  std::barrier<> everybody(together ? blocks * threads : 1);
  grid = &everybody;
  for (unsigned b = 0; b < blocks; b += together ? blocks : 1) {
    std::vector<std::unique_ptr<Block>> made;
    std::vector<std::thread> running;
    for (unsigned i = b; i < (together ? blocks : b + 1); ++i) {
      made.push_back(std::make_unique<Block>(threads, bytes));
      for (int t = 0; t < threads; ++t) running.emplace_back(thread, i, t, made.back().get());
    }
    for (std::thread& one : running) one.join();
  }
}

}  // namespace emulated

inline void __syncthreads() { emulated::block->all.arrive_and_wait(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int step) {
  emulated::Block& block = *emulated::block;
  std::barrier<>& warp = *block.warps[threadIdx.x / 32];
  std::memcpy(&block.exchanged[threadIdx.x], &value, sizeof(T));
  warp.arrive_and_wait();
  T other;
  std::memcpy(&other, &block.exchanged[threadIdx.x ^ step], sizeof(T));
  warp.arrive_and_wait();
  return other;
}

namespace cooperative_groups {
struct Grid {
  void sync() { emulated::grid->arrive_and_wait(); }
};
inline Grid this_grid() { return {}; }
}  // namespace cooperative_groups

template <typename T>
T __ldg(const T* at) {
  return *at;
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
