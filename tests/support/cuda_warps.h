// CUDA kernels of whole warps on the CPU: what g++ needs to build them, for tests of what they compute.
// A thread is a fiber; warps run one after another from barrier to barrier, blocks one after another.
// In place of `warp_device.h`: fragments are exchanged and multiplied in float32 as a warp would.

#ifndef RW_CUDA_WARPS
#define RW_CUDA_WARPS

#include <cuda_runtime_api.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cuda_races.h"
#include "cuda_switch.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#define __expf expf
#define __fdividef(a, b) ((a) / (b))

struct Index {
  unsigned x, y, z;
};

inline Index threadIdx, blockIdx, gridDim, blockDim;

namespace emulated {

// Bytes into shared memory, or zeros; made when a thread waits for them, and not before.
struct Copy {
  unsigned to;
  const void* from;
  unsigned bytes;
};

struct Fiber {
  Place place;
  Stack stack;
  std::vector<Copy> asked;
  std::vector<std::vector<Copy>> under_way;
  bool begun = false, done = false, waits = false;
};

// Of a block's barrier: how many threads have come, and how often all have.
struct Barrier {
  size_t come = 0, turn = 0;
};

struct Warp {
  int arrived = 0, turn = 0;
  unsigned exchanged[2][32][8];
};

inline Place home;
inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline Barrier barrier;
inline std::vector<char> shared;
inline std::function<void()> kernel;
inline size_t current;

inline void leave() { fibers[current].place.leave_for(home); }

inline void body() {
  kernel();
  fibers[current].done = true;
  leave();
}

inline void enter(size_t i) {
  current = i;
  threadIdx = {static_cast<unsigned>(i), 0, 0};
  Fiber& fiber = fibers[i];
  if (fiber.begun) return home.leave_for(fiber.place);
  fiber.begun = true;
  home.leave_for(body, fiber.stack.data(), Stack::kBytes);
}

// With `orders` what a lane did before is known to all after it.
inline void sync_warp(bool orders) {
  Warp& warp = warps[current / 32];
  const int turn = warp.turn;
  if (++warp.arrived == 32) {
    if (orders) races::meet(current / 32 * 32, 32);
    warp.arrived = 0;
    ++warp.turn;
  } else {
    while (warp.turn == turn) leave();
  }
}

// All lanes' words; two operations never share a buffer.
inline unsigned (*exchange(const unsigned* words, int count))[8] {
  Warp& warp = warps[current / 32];
  unsigned(*all)[8] = warp.exchanged[warp.turn % 2];
  std::memcpy(all[current % 32], words, sizeof(unsigned) * count);
  sync_warp(false);
  return all;
}

inline void run(dim3 size, int threads, int bytes) {
  gridDim = {size.x, size.y, size.z};
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  for (unsigned b = 0; b < size.x * size.y * size.z; ++b) {
    blockIdx = {b % size.x, b / size.x % size.y, b / (size.x * size.y)};
    fibers.resize(static_cast<size_t>(threads));
    for (Fiber& fiber : fibers) {
      fiber.asked.clear();
      fiber.under_way.clear();
      fiber.begun = fiber.done = fiber.waits = false;
    }
    warps.assign(static_cast<size_t>(threads / 32), {});
    // Large numbers, if it is read before it is written; what is NaN would be computed again.
    shared.assign(static_cast<size_t>(bytes), '\x7b');
    barrier = {};
    races::begin(static_cast<size_t>(threads), static_cast<size_t>(bytes));
    for (bool live = true; live;) {
      live = false;
      for (size_t w = 0; w < warps.size(); ++w) {
        for (bool runs = true; runs;) {
          runs = false;
          for (size_t i = 32 * w; i < 32 * w + 32; ++i) {
            if (fibers[i].done || fibers[i].waits) continue;
            enter(i);
            runs = runs || !(fibers[i].done || fibers[i].waits);
          }
        }
      }
      size_t count = 0;
      for (Fiber& fiber : fibers) {
        count += !fiber.done;
        fiber.waits = false;
      }
      live = count > 0;
      if (barrier.come == count) {  // all that have not returned
        races::meet(0, fibers.size());
        barrier.come = 0;
        ++barrier.turn;
      }
    }
  }
}

inline float wide(unsigned short bits, __half) {
  __half x;
  std::memcpy(&x, &bits, 2);
  return __half2float(x);
}

inline float wide(unsigned short bits, __nv_bfloat16) {
  __nv_bfloat16 x;
  std::memcpy(&x, &bits, 2);
  return __bfloat162float(x);
}

inline char* at(unsigned place, size_t bytes, size_t align) {
  if (place + bytes > shared.size() || place % align != 0) {
    std::fprintf(stderr, "shared memory: %zu bytes at %u of %zu\n", bytes, place, shared.size());
    std::abort();
  }
  return shared.data() + place;
}

// sums += a (16 × terms) times b (terms × 8)
template <int terms, typename T>
void multiply(float (&sums)[4], const unsigned* a, const unsigned* b, T type) {
  unsigned words[6] = {a[0], a[1], terms == 16 ? a[2] : 0, terms == 16 ? a[3] : 0, b[0],
                       terms == 16 ? b[1] : 0};
  unsigned(*all)[8] = exchange(words, 6);
  const int lane = static_cast<int>(current % 32);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < terms; ++k) {
      const unsigned one = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
      const unsigned two = all[column * 4 + k % 8 / 2][4 + k / 8];
      sums[i] += wide(static_cast<unsigned short>(one >> (k % 2 * 16)), type) *
                 wide(static_cast<unsigned short>(two >> (k % 2 * 16)), type);
    }
  }
}

}  // namespace emulated

inline void __syncwarp() { emulated::sync_warp(true); }

inline void __syncthreads() {
  emulated::Barrier& barrier = emulated::barrier;
  const size_t turn = barrier.turn;
  ++barrier.come;
  while (barrier.turn == turn) {
    emulated::fibers[emulated::current].waits = true;
    emulated::leave();
  }
}

using std::max;
using std::min;

template <typename T>
T __ldg(const T* at) {
  return *at;
}

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const uint64_t both = uint64_t{b} << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= (both >> ((which >> (4 * i) & 7) * 8) & 255) << (8 * i);
  return out;
}

namespace {

using Spot = unsigned;

inline Spot shared_memory() { return 0; }

inline void copy_some(Spot to, const void* from, bool there, unsigned bytes) {
  if (there && reinterpret_cast<uintptr_t>(from) % bytes != 0) std::abort();
  races::asks(emulated::current, to, bytes);
  emulated::fibers[emulated::current].asked.push_back({to, there ? from : nullptr, bytes});
}
inline void copy_16(Spot to, const void* from, bool there) { copy_some(to, from, there, 16); }
inline void copy_4(Spot to, const void* from, bool there) { copy_some(to, from, there, 4); }

inline void copy_8(Spot to, const void* from, unsigned bytes) { copy_some(to, from, bytes != 0, 8); }

inline void keep(unsigned&) {}

template <typename T>
const T* beyond(const T* at, unsigned elements) {
  return at + elements;
}

inline void copies_end() {
  emulated::Fiber& fiber = emulated::fibers[emulated::current];
  fiber.under_way.push_back(std::move(fiber.asked));
  fiber.asked.clear();
}

template <int left>
void wait_copies() {
  auto& under_way = emulated::fibers[emulated::current].under_way;
  for (; under_way.size() > left; under_way.erase(under_way.begin())) {
    for (const emulated::Copy& one : under_way.front()) {
      races::is_copied(emulated::current, one.to, one.bytes);
      if (one.from != nullptr) {
        std::memcpy(emulated::at(one.to, one.bytes, one.bytes), one.from, one.bytes);
      } else {
        std::memset(emulated::at(one.to, one.bytes, one.bytes), 0, one.bytes);
      }
    }
  }
}

// Of a gate: how many warps, how many of them are still to come, and how often all have come.
struct Gate {
  unsigned short warps, left;
  unsigned turns;
};

inline Gate* gate_at(Spot at) { return reinterpret_cast<Gate*>(emulated::at(at, 8, 8)); }

inline void gate_begin(Spot at, int warps) {
  if (threadIdx.x == 0) *gate_at(at) = {static_cast<unsigned short>(warps), static_cast<unsigned short>(warps), 0};
}

inline void gate_arrive(Spot at) {
  emulated::sync_warp(true);
  Gate* const gate = gate_at(at);
  if (threadIdx.x % 32 != 0) return;
  races::arrives(emulated::current);
  if (--gate->left == 0) {
    gate->left = gate->warps, ++gate->turns;
    races::turns();
  }
}

inline void gate_pass(Spot at, int turn) {
  emulated::sync_warp(false);  // lanes go on together
  while (gate_at(at)->turns % 2 == static_cast<unsigned>(turn) % 2) {
    emulated::fibers[emulated::current].waits = true;
    emulated::leave();
  }
  races::passes(emulated::current);
}

template <bool across>
void matrices_4(unsigned (&to)[4], Spot at) {
  unsigned(*all)[8] = emulated::exchange(&at, 1);
  const unsigned lane = static_cast<unsigned>(emulated::current % 32);
  for (unsigned m = 0; m < 4; ++m) {
    unsigned short two[2];
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned row = across ? lane % 4 * 2 + i : lane / 4;
      const unsigned column = across ? lane / 4 : lane % 4 * 2 + i;
      std::memcpy(&two[i], emulated::at(all[m * 8 + row][0], 16, 16) + 2 * column, 2);
      races::read(emulated::current, all[m * 8 + row][0] + 2 * column, 2);
    }
    to[m] = two[0] | unsigned{two[1]} << 16;
  }
}

template <typename T>
void multiply_16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, T type) {
  const unsigned b[2] = {b0, b1};
  emulated::multiply<16>(sums, a, b, type);
}

template <typename T>
void multiply_8(float (&sums)[4], const unsigned (&a)[4], unsigned b, T type) {
  emulated::multiply<8>(sums, a, &b, type);
}

inline float power_of_2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.f : y;
}

inline float from_lane(float value, int lane) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  unsigned(*all)[8] = emulated::exchange(&bits, 1);
  std::memcpy(&value, all[lane], sizeof(bits));
  return value;
}
inline float from_beside(float value, int bits) {
  return from_lane(value, static_cast<int>(emulated::current % 32) ^ bits);
}

inline void after_the_one_before() {}

template <typename V>
V read_of(Spot at) {
  V v;
  races::read(emulated::current, at, sizeof(V));
  std::memcpy(&v, emulated::at(at, sizeof(V), sizeof(V)), sizeof(V));
  return v;
}

template <typename V>
void write_of(Spot at, V v) {
  races::write(emulated::current, at, sizeof(V));
  std::memcpy(emulated::at(at, sizeof(V), sizeof(V)), &v, sizeof(V));
}

inline uint4 read_16(Spot at) { return read_of<uint4>(at); }
inline uint2 read_8(Spot at) { return read_of<uint2>(at); }
inline unsigned read_4(Spot at) { return read_of<unsigned>(at); }
inline unsigned read_2(Spot at) { return read_of<unsigned short>(at); }
inline float read_f(Spot at) { return read_of<float>(at); }
inline void write_16(Spot at, uint4 v) { write_of(at, v); }
inline void write_8(Spot at, uint2 v) { write_of(at, v); }
inline void write_4(Spot at, unsigned v) { write_of(at, v); }
inline void write_2(Spot at, unsigned short v) { write_of(at, v); }
inline void write_f(Spot at, float v) { write_of(at, v); }

template <typename... P, typename... A>
cudaError_t launch_with(void (*kernel)(P...), dim3 grid, int threads, int bytes, cudaStream_t,
                        A... arguments) {
  emulated::kernel = [=] { kernel(arguments...); };
  emulated::run(grid, threads, bytes);
  return cudaSuccess;
}

}  // namespace

extern "C" {
inline cudaError_t emulated_device(int* device) { return *device = 0, cudaSuccess; }
}
#define cudaGetDevice emulated_device
#define cudaDeviceGetAttribute(to, ...) (*(to) = 2, cudaSuccess)
#define cudaGetLastError() cudaSuccess

#endif
