// ---- small tensors: one launch, with the rows in shared memory ------------------------------------------
//
// What fits into the shared memory of all multiprocessors is read once.  A block for each of them has
// `width` packs of channels side by side and a range of rows, and a thread keeps what it reads itself.
// A grid-wide barrier lies between the sums and their use, so all blocks must run at once: the launch
// is a cooperative one.

// Without all of libcu++, which takes nvcc as long as the kernels do; of it nothing is used here.
#define _CG_LIMIT_INCLUDED_DEPENDENCIES
#include <cooperative_groups.h>

#ifndef RW_NORM_MANY
#define RW_NORM_MANY 512  // threads of a block
#endif

namespace {

constexpr int kMany = RW_NORM_MANY, kPacks = 8, kBatch = 4;
// Blocks of the same channels at most, and those whose sums a thread reads at once: a turn or two.
constexpr int kMostBlocks = 80, kBlocksAtOnce = 10;
constexpr unsigned kAll = 0xffffffffu;

struct Together {
  int64_t rows, channels;
  int width;   // packs side by side, a power of two
  int tiles;   // blocks side by side
  int blocks;  // over rows; 0: it does not fit
  int range;   // rows of a block, at most
  int turns;   // rows of a thread, at most

  __host__ __device__ int height() const { return kMany / width; }
  __device__ int rows_of(int block) const {
    const int64_t left = rows - int64_t{block} * range;
    return static_cast<int>(left < 0 ? 0 : left < range ? left : range);
  }

  // Where a thread sits.
  struct Seat {
    int tile, block, lane, row;
    __device__ Seat(const Together& z)
        : tile(blockIdx.x % z.tiles), block(blockIdx.x / z.tiles), lane(threadIdx.x & (z.width - 1)),
          row(threadIdx.x / z.width) {}
  };
  template <int V>
  __device__ int64_t offset(const Seat& at, int turn) const {
    return offset<V>(at, turn, channels);
  }
  // Of a tensor whose rows are further apart.
  template <int V>
  __device__ int64_t offset(const Seat& at, int turn, int64_t stride) const {
    const int64_t row = int64_t{at.block} * range + at.row + turn * height();
    return row * stride + (int64_t{at.tile} * width + at.lane) * V;
  }
  // Rows of a thread; none where its channels are not there.
  template <int V>
  __device__ int turns_of(const Seat& at) const {
    if ((int64_t{at.tile} * width + at.lane) * V >= channels) return 0;
    const int left = rows_of(at.block) - at.row;
    return left <= 0 ? 0 : (left + height() - 1) / height();
  }
};

using Seat = Together::Seat;

// Two sums of a block for each of its channels, by warp; later of all blocks, by part.
template <typename A, int V>
struct Sums {
  A of[2][kMany / 32][kPacks * V];
  A counts[kMany / 32];
};

// Calls `some(values)` with what `read(b)` gives of each of a thread's blocks, so many at a time: all are under
// way together, those that are not there as well, in whose place is `none`.
template <typename Value, typename Read, typename Some>
__device__ inline void each_block(int part, int parts, int blocks, const Value& none, Read read, Some some) {
  for (int first = part; first < blocks; first += kBlocksAtOnce * parts) {
    Value values[kBlocksAtOnce];
#pragma unroll
    for (int k = 0; k < kBlocksAtOnce; ++k) {
      const int b = first + k * parts;
      values[k] = read(b < blocks ? b : blocks - 1);
      if (b >= blocks) values[k] = none;
    }
    some(values);
  }
}

// The sum of all parts' values for a channel; every thread gets it.
template <typename A, int V>
__device__ inline A over_parts(Sums<A, V>& shared, A value, int c, int part, int parts) {
  static_assert(sizeof(shared.of) >= kMany * sizeof(A));
  A* const at = &shared.of[0][0][0];
  const int channels = kMany / parts;
  __syncthreads();
  at[part * channels + c] = value;
  __syncthreads();
  A sum = 0;
  for (int p = 0; p < parts; ++p) sum += at[p * channels + c];
  __syncthreads();
  return sum;
}

// 16 bytes of a thread's own on the way to shared memory.
template <typename T>
__device__ inline void keep(uint4* kept, int turn, const T* from) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(kept + turn * kMany + threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// What is on the way since the last call is one group.
__device__ inline void kept_so_far() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the `later` last groups are there; or more, where there is no instruction for it.
__device__ inline void wait_for_kept(int later) {
  if (later >= 16) {
    asm volatile("cp.async.wait_group 16;" ::: "memory");
  } else if (later >= 8) {
    asm volatile("cp.async.wait_group 8;" ::: "memory");
  } else if (later >= 4) {
    asm volatile("cp.async.wait_group 4;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}

template <typename T, int V>
__device__ inline void read_kept(Pack<T, V>& pack, const uint4* kept, int turn) {
  const uint4 bits = kept[turn * kMany + threadIdx.x];
  memcpy(&pack, &bits, sizeof(bits));
}

template <typename T, int V>
__device__ inline void write_kept(const Pack<T, V>& pack, uint4* kept, int turn) {
  uint4 bits;
  memcpy(&bits, &pack, sizeof(bits));
  kept[turn * kMany + threadIdx.x] = bits;
}

// How `tensors` of a call's rows are shared out, if they fit.  Each block reads the sums of all blocks
// of its channels, so it does not pay for more than some of them.
template <typename T>
inline Together together_of(const RelayWgradNormCall& call, int tensors) {
  const int64_t packs = call.channels / kVector<T>;
  Together z{call.rows, call.channels, kPacks, 0, 0, 0, 0};
  while (z.width > 1 && z.width / 2 >= packs) z.width /= 2;
  const int64_t tiles = (packs + z.width - 1) / z.width;
  const bool is_batch = call.images == 1 && call.groups == call.channels;
  if (!call.together || !is_batch || tiles > call.multiprocessors || call.rows >= (1 << 30)) return z;
  z.tiles = static_cast<int>(tiles);
  int64_t most = call.multiprocessors / tiles;
  const int64_t room = call.workspace_bytes / (kNormSums * sizeof(Sum<T>) * call.channels);
  most = most < room ? most : room;
  const int64_t useful = (call.rows + z.height() - 1) / z.height();
  most = most < useful ? most : useful;
  if (most > kMostBlocks) return z;
  z.range = static_cast<int>((call.rows + most - 1) / most);
  z.turns = (z.range + z.height() - 1) / z.height();
  if (int64_t{16} * kMany * z.turns * tensors <= (1 << 18)) {
    z.blocks = static_cast<int>((call.rows + z.range - 1) / z.range);
  }
  return z;
}

// cudaErrorNotSupported: it does not fit, and nothing was launched.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_together(void (*kernel)(Parameters...), const Together& z, int tensors,
                            size_t sums, cudaStream_t stream, Arguments... arguments) {
  if (z.blocks == 0) return cudaErrorNotSupported;
  int device = 0, most = 0, cooperative = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
  }
  if (error != cudaSuccess) return error;
  const size_t bytes = size_t{16} * kMany * z.turns * tensors + sums;
  if (!cooperative || bytes > static_cast<size_t>(most)) return cudaErrorNotSupported;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(z.tiles) * z.blocks);
  config.blockDim = dim3(kMany);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaErrorCooperativeLaunchTooLarge) return error;
  cudaGetLastError();  // a device that is shared out: the other kernels do
  return cudaErrorNotSupported;
}

}  // namespace
