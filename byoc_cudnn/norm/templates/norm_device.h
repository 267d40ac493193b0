// ---- rows of channels: what the kernels of both directions share -------------------------------------
//
// A block has `width` threads side by side, each with a pack of V neighbouring channels, 16 bytes, and
// 256 / width rows of them.  It takes every gridDim.y-th chunk of rows, U rows a thread and chunk, whose loads are all
// under way before the first is used.  Which rows a thread adds, and in which order sums are added, is
// a matter of sizes and of the device's size alone, so a second run gives the same bits.

// Measured (`benchmarks.gpu_norm_tries`): rows of a thread that are read together; blocks of a
// multiprocessor that registers are sparing enough for, and that the passes which write get.
#ifndef RW_NORM_UNROLL
#define RW_NORM_UNROLL 8
#endif
#ifndef RW_NORM_RESIDENT
#define RW_NORM_RESIDENT 2
#endif
#ifndef RW_NORM_WRITERS
#define RW_NORM_WRITERS 32
#endif

namespace {

constexpr int kUnroll = RW_NORM_UNROLL, kResident = RW_NORM_RESIDENT, kWriters = RW_NORM_WRITERS;

// Written out, so that both directions round alike whatever the compiler would contract.
__device__ inline float less(float a, float b) { return __fsub_rn(a, b); }
__device__ inline double less(double a, double b) { return __dsub_rn(a, b); }
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float times_plus(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double times_plus(double a, double b, double c) { return __fma_rn(a, b, c); }

// Values of one a channel; of channels that are not there zeros.
template <int V, typename A>
__device__ inline void load_channels(A (&to)[V], const A* from, int64_t left) {
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = i < left ? __ldg(from + i) : A(0);
}

// How a call's rows and channels are shared out.
struct Shape {
  int64_t rows, channels;
  int64_t chunks;  // of all rows
  int width;       // threads side by side, a power of two
  int blocks;      // over rows
  int tiles;       // blocks side by side
  int64_t packs;   // of a row

  __host__ __device__ int height() const { return kThreads / width; }
  __host__ __device__ int64_t chunk_rows() const { return int64_t{height()} * kUnroll; }
  // At most that many; all take the same number of chunks, or one less.
  __host__ void set_blocks(int64_t most) {
    most = most < 1 ? 1 : most > 65535 ? 65535 : most;
    const int64_t turns = (chunks + most - 1) / most;
    blocks = static_cast<int>((chunks + turns - 1) / turns);
  }
  // Rows that block `y` takes: every `blocks`-th chunk, of which the last may be short.
  __device__ int64_t rows_of(int y) const {
    const int64_t mine = (chunks - y + blocks - 1) / blocks;
    const bool last = (chunks - 1) % blocks == y;
    return mine * chunk_rows() - (last ? chunks * chunk_rows() - rows : 0);
  }
};

// The place of a thread.
struct Place {
  int row;
  int64_t pack, channel;  // the first of the pack's
  int64_t left;           // channels from there on
  __device__ Place(const Shape& shape, int vector)
      : row(threadIdx.x / shape.width),
        pack(int64_t{blockIdx.x} * shape.width + (threadIdx.x & (shape.width - 1))),
        channel(pack * vector), left(shape.channels - channel) {}
};

// Calls `all(first row)` where U rows of the thread are all there, `single(row)` for each row of the
// chunk that is short, and where packs are not whole.  `backwards`: from the last chunk, which the pass
// before read last.
template <bool backwards, bool whole, typename All, typename Single>
__device__ inline void each_chunk(const Shape& shape, int row, All all, Single single) {
  for (int64_t i = blockIdx.y; i < shape.chunks; i += shape.blocks) {
    const int64_t chunk = backwards ? shape.chunks - 1 - i : i;
    const int64_t first = chunk * shape.chunk_rows() + row;
    if constexpr (whole) {
      if ((chunk + 1) * shape.chunk_rows() <= shape.rows) {
        all(first);
        continue;
      }
    }
#pragma unroll 1
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + int64_t{u} * shape.height();
      if (at < shape.rows) single(at);
    }
  }
}

// ---- activations: of what is normalized, and of its gradient ------------------------------------------

enum class Activation { kNone, kRelu, kRelu6, kSilu };

// 1 / (1 + exp(-v)) of what is stored as T.  In half by approximate functions, whose error its rounding
// hides: exp and a division in full are most of the instructions of a pass over half.
template <typename T>
__device__ inline Sum<T> sigmoid(Sum<T> v) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.f, 1.f + __expf(-v));
  return Sum<T>(1) / (Sum<T>(1) + exp(-v));
}

template <Activation act, typename T>
__device__ inline Sum<T> activated(Sum<T> v) {
  using A = Sum<T>;
  if constexpr (act == Activation::kRelu) return v < A(0) ? A(0) : v;  // NaN stays NaN
  if constexpr (act == Activation::kRelu6) return v < A(0) ? A(0) : v > A(6) ? A(6) : v;
  if constexpr (act == Activation::kSilu) return v * sigmoid<T>(v);
  return v;
}

// Whether a gradient passes where `v` is stored: of what is stored, not of what it was rounded from.
template <Activation act, typename A>
__device__ inline bool passes(A v) {
  if constexpr (act == Activation::kRelu) return !(v <= A(0));
  if constexpr (act == Activation::kRelu6) return !(v <= A(0) || v >= A(6));
  return true;
}

// The same of a pack, a bit each.
template <Activation act, typename T, int V>
__device__ inline uint8_t passing(const Pack<T, V>& pack) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) bits |= unsigned{passes<act>(wide(pack.value[i]))} << i;
  return static_cast<uint8_t>(bits);
}

// The gradient before the activation, where `v` came out of the normalization.
template <Activation act, typename T>
__device__ inline Sum<T> before(Sum<T> dy, Sum<T> v) {
  using A = Sum<T>;
  if constexpr (act == Activation::kSilu) {
    const A s = sigmoid<T>(v);
    return dy * (s * (A(1) + v * (A(1) - s)));
  }
  return passes<act>(wide(narrow<T>(v))) ? dy : A(0);
}

// ---- sums over the blocks -----------------------------------------------------------------------------

constexpr int kFew = 8, kParts = 64;  // a block of what finishes: channels, and threads of each

// The sum over `y` of `term(y)`, for the channel of a thread; the order is that of the sizes.
template <typename A, typename Term>
__device__ inline A over_blocks(int blocks, Term term) {
  __shared__ A sums[kFew * kParts / 32][kFew];
  A sum = 0;
#pragma unroll 4
  for (int y = threadIdx.x / kFew; y < blocks; y += kParts) sum += term(y);
  for (int step = kFew; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 < kFew) sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < kFew * kParts / 32; ++warp) sum += sums[warp][threadIdx.x % kFew];
  __syncthreads();
  return sum;
}

// ---- launching ----------------------------------------------------------------------------------------

template <int V>
inline Shape shape_of(const RelayWgradNormCall& call, int sum_bytes) {
  const int64_t columns = (call.channels + V - 1) / V;
  // As wide as it goes with few threads idle.  Four threads read 64 bytes of a row.
  int width = 32;
  while (width > 4) {
    const int64_t taken = (columns + width - 1) / width * width;
    if (taken * 8 <= columns * 9) break;
    width /= 2;
  }
  Shape shape{call.rows, call.channels, 0, width, 0, 0, columns};
  shape.chunks = (call.rows + shape.chunk_rows() - 1) / shape.chunk_rows();
  shape.tiles = static_cast<int>((columns + width - 1) / width);
  const int64_t room = call.workspace_bytes / (kNormSums * sum_bytes * call.channels);
  const int64_t most = kNormBlocks * call.multiprocessors / shape.tiles;
  shape.set_blocks(most < room ? most : room);
  return shape;
}

// For a pass without sums.
inline Shape writing(Shape shape, const RelayWgradNormCall& call) {
  shape.set_blocks(int64_t{kWriters} * call.multiprocessors / shape.tiles);
  return shape;
}

inline dim3 grid_of(const Shape& shape) {
  return dim3(static_cast<unsigned>(shape.tiles), static_cast<unsigned>(shape.blocks));
}

inline dim3 few_grid(const Shape& shape) {
  return dim3(static_cast<unsigned>((shape.channels + kFew - 1) / kFew));
}

}  // namespace
