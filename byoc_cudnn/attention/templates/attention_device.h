// ---- attention: softmax(q kᵀ scale) v of many matrices, and its gradient ---------------------------------
//
// A block has rows of one side, sixteen a warp, and rows of the other side pass through shared memory, a tile
// under way while one is multiplied.  Scores stay in registers: backward they are computed again, and
//   p = exp(s scale) / sum,  dv = pᵀ dout,  ds = p (dout vᵀ - inner),  dq = ds k scale,  dk = dsᵀ q scale
// with inner = dout outᵀ of each row.  dq has a kernel, whose blocks have rows of q, and dk and dv one, whose
// blocks have rows of k: nothing is added up by two blocks, so results are the same each time.

#include <cmath>

namespace {

using Call = RelayWgradAttentionCall;
using Place = RelayWgradAttentionPlace;

constexpr int kLanes = 32, kWarps = 4, kBlock = kWarps * kLanes;
constexpr int kSide = 16;             // rows and columns that are multiplied at a time
constexpr int kOwn = kWarps * kSide;  // rows of a block

template <int width>
struct Shape {
  static constexpr int kPacks = width / 8;
  static constexpr int kSteps = (width + kSide - 1) / kSide;
  static constexpr int kPitch = 2 * kSide * kSteps + 16;  // bytes: rows of a matrix are in all banks
  static constexpr int kTile = kSteps > 4 ? 32 : 64;      // rows that pass at a time
  static constexpr int kTileBytes = kTile * kPitch, kOwnBytes = kOwn * kPitch;
  static constexpr bool kKept = kSteps <= 4;  // whether registers hold a warp's rows of two tensors
};

// ---- where things are ----

// Of a block: its matrix, and the first of its rows.
struct Part {
  int64_t matrix, first;
  uint32_t digit[kOuter];

  __device__ Part(const Call& z, int64_t rows) {
    const uint32_t parts = static_cast<uint32_t>((rows + kOwn - 1) / kOwn);
    uint32_t rest = blockIdx.x / parts;
    matrix = rest;
    first = int64_t{blockIdx.x % parts} * kOwn;
#pragma unroll
    for (int i = kOuter - 1; i > 0; --i) {
      digit[i] = rest % static_cast<uint32_t>(z.size[i]);
      rest /= static_cast<uint32_t>(z.size[i]);
    }
    digit[0] = rest;
  }

  template <typename T>
  __device__ T* of(const Place& place) const {
    int64_t begin = 0;
#pragma unroll
    for (int i = 0; i < kOuter; ++i) begin += digit[i] * place.step[i];
    return static_cast<T*>(place.at) + begin;
  }
};

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ inline int first_of_warp() { return static_cast<int>(threadIdx.x) / kLanes * kSide; }

// Rows of a matrix from `first` on into shared memory; zeros behind its last row and its width.
template <int width, int rows, typename T>
__device__ inline void load_rows(Spot to, const T* from, int64_t step, int64_t first, int64_t count,
                                 bool whole) {
  using S = Shape<width>;
  constexpr int kPacks = 2 * S::kSteps;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPacks; i += kBlock) {
    const int row = i / kPacks, pack = i % kPacks;
    const bool there = first + row < count && pack < S::kPacks;
    const T* const at = there ? from + (first + row) * step + 8 * pack : from;
    const Spot place = to + static_cast<Spot>(row * S::kPitch + 16 * pack);
    if (whole) {
      copy_16(place, at, there);
    } else {
      Pack<T, 8> values;
      load<false>(values, at, there ? 8 : 0);
      uint4 bits;
      memcpy(&bits, &values, sizeof(bits));
      write_16(place, bits);
    }
  }
}

// One number for each row, zeros behind the last.
template <int rows>
__device__ inline void load_numbers(Spot to, const float* from, int64_t first, int64_t count) {
  const int i = static_cast<int>(threadIdx.x);
  static_assert(rows <= kBlock);
  if (i >= rows) return;
  const bool there = first + i < count;
  copy_4(to + static_cast<Spot>(4 * i), there ? from + first + i : from, there);
}

// ---- products ----

// Where a lane has its row of 16 × 16 elements: of a first operand, and of a second one that is columns of rows.
template <int width>
__device__ inline Spot tall(Spot at) {
  return at + static_cast<Spot>(lane() % 16 * Shape<width>::kPitch + lane() / 16 * 16);
}

// Of a second operand whose rows are columns.
template <int width>
__device__ inline Spot broad(Spot at) {
  return at + static_cast<Spot>((lane() / 16 * 8 + lane() % 8) * Shape<width>::kPitch + lane() / 8 % 2 * 16);
}

// A warp's own sixteen rows as first operands.
template <int width, bool kept>
struct Fragments {
  static constexpr int kSteps = Shape<width>::kSteps;
  unsigned value[kept ? kSteps : 1][4];
  Spot at;

  __device__ void begin(Spot rows) {
    at = tall<width>(rows);
    if constexpr (kept) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) matrices_4<false>(value[k], at + 32 * k);
    }
  }

  __device__ const unsigned (&step(int k))[4] {
    if constexpr (kept) {
      return value[k];
    } else {
      matrices_4<false>(value[0], at + 32 * k);
      return value[0];
    }
  }
};

// sums (16 × 16) += own rows times sixteen rows of a tile, which are columns.
template <typename T, int width, bool kept>
__device__ inline void by_rows(float (&sums)[2][4], Fragments<width, kept>& own, Spot rows) {
#pragma unroll
  for (int k = 0; k < Shape<width>::kSteps; ++k) {
    unsigned b[4];
    matrices_4<false>(b, rows + 32 * k);
    const unsigned (&a)[4] = own.step(k);
    multiply_16(sums[0], a, b[0], b[1], T());
    multiply_16(sums[1], a, b[2], b[3], T());
  }
}

// sums (16 × width) += a (16 × 16) times sixteen rows of a tile.
template <typename T, int width>
__device__ inline void by_columns(float (&sums)[Shape<width>::kPacks][4], const unsigned (&a)[4], Spot rows) {
#pragma unroll
  for (int k = 0; k < Shape<width>::kSteps; ++k) {
    unsigned b[4];
    matrices_4<true>(b, rows + 32 * k);
    multiply_16(sums[2 * k], a, b[0], b[1], T());
    if (2 * k + 1 < Shape<width>::kPacks) multiply_16(sums[2 * k + 1], a, b[2], b[3], T());
  }
}

template <typename T>
__device__ inline unsigned both(float a, float b) {
  const T two[] = {narrow<T>(a), narrow<T>(b)};
  unsigned bits;
  memcpy(&bits, two, sizeof(bits));
  return bits;
}

// Results as a first operand: their columns are the products' terms.
template <typename T>
__device__ inline void turn(unsigned (&to)[4], const float (&from)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = both<T>(from[i / 2][i % 2 * 2], from[i / 2][i % 2 * 2 + 1]);
}

// A warp's sums, times a factor of each of a lane's two rows, as rows of a matrix, by way of sixteen rows of
// shared memory that this warp alone reads.
template <typename T, int width>
__device__ inline void store_rows(Spot by, const float (&sums)[Shape<width>::kPacks][4], float upper,
                                  float lower, T* to, int64_t step, int64_t first, int64_t count, bool whole) {
  using S = Shape<width>;
  const Spot at = by + static_cast<Spot>(lane() / 4 * S::kPitch + lane() % 4 * 4);
  __syncwarp();
#pragma unroll
  for (int j = 0; j < S::kPacks; ++j) {
    write_4(at + 16 * j, both<T>(sums[j][0] * upper, sums[j][1] * upper));
    write_4(at + 16 * j + 8 * S::kPitch, both<T>(sums[j][2] * lower, sums[j][3] * lower));
  }
  __syncwarp();
  for (int i = lane(); i < kSide * S::kPacks; i += kLanes) {
    const int row = i / S::kPacks, pack = i % S::kPacks;
    if (first + row >= count) continue;
    const uint4 bits = read_16(by + static_cast<Spot>(row * S::kPitch + 16 * pack));
    Pack<T, 8> values;
    memcpy(&values, &bits, sizeof(bits));
    T* const there = to + (first + row) * step + 8 * pack;
    if (whole) {
      store<true>(there, values, 8);
    } else {
      store<false>(there, values, 8);
    }
  }
}

// ---- forward ----

// What a lane knows of its two rows of q, after some columns.
template <int width>
struct Softmax {
  float most[2], sum[2];
  float out[Shape<width>::kPacks][4];
};

// The columns of one tile, `left` of them; with `full` all.
template <bool full, typename T, int width>
__device__ inline void tile_forward(Softmax<width>& state, Fragments<width, true>& q, Spot k, Spot v, int left,
                                    float scale) {
  using S = Shape<width>;
  constexpr int kParts = S::kTile / kSide;
  float s[kParts][2][4] = {};
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    if (full || kSide * j < left) by_rows<T>(s[j], q, broad<width>(k) + kSide * S::kPitch * j);
  }
  float most[2] = {state.most[0], state.most[1]};
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& one = s[j][i / 4][i % 4];
      if (!full && kSide * j + i / 4 * 8 + lane() % 4 * 2 + i % 2 >= left) one = -INFINITY;
      most[i % 4 / 2] = fmaxf(most[i % 4 / 2], one);
    }
  }
  float level[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = fmaxf(most[r], from_beside(most[r], 1));
    most[r] = fmaxf(most[r], from_beside(most[r], 2));
    level[r] = most[r] == -INFINITY ? 0.f : most[r] * scale;  // of nothing but -inf the sum is 0
    const float less = power_of_2(state.most[r] * scale - level[r]);
    state.most[r] = most[r];
    state.sum[r] *= less;
#pragma unroll
    for (int j = 0; j < S::kPacks; ++j) {
      state.out[j][2 * r] *= less;
      state.out[j][2 * r + 1] *= less;
    }
  }
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    if (!full && kSide * j >= left) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& one = s[j][i / 4][i % 4];
      one = power_of_2(one * scale - level[i % 4 / 2]);
      state.sum[i % 4 / 2] += one;
    }
    unsigned a[4];
    turn<T>(a, s[j]);
    by_columns<T, width>(state.out, a, tall<width>(v) + kSide * S::kPitch * j);
  }
}

template <typename T, int width>
__global__ void __launch_bounds__(kBlock) attention_forward(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  after_the_one_before();
  const Part part(z, z.rows);
  const T *const q = part.of<T>(z.q), *const k = part.of<T>(z.k), *const v = part.of<T>(z.v);
  const Spot own = shared_memory(), passing = own + S::kOwnBytes;
  const auto load = [&](int64_t tile) {
    const Spot to = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    load_rows<width, S::kTile>(to, k, z.k.row, tile * S::kTile, z.columns, z.whole);
    load_rows<width, S::kTile>(to + S::kTileBytes, v, z.v.row, tile * S::kTile, z.columns, z.whole);
  };
  load_rows<width, kOwn>(own, q, z.q.row, part.first, z.rows, z.whole);
  load(0);
  copies_end();
  const Spot mine = own + static_cast<Spot>(first_of_warp() * S::kPitch);
  const int64_t first = part.first + first_of_warp();
  const float scale = z.scale * 1.44269504088896340736f;  // powers are of 2
  Fragments<width, true> rows;
  Softmax<width> state{{-INFINITY, -INFINITY}};
  const int64_t tiles = (z.columns + S::kTile - 1) / S::kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    if (tile == 0) rows.begin(mine);
    const Spot at = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    const int64_t left = z.columns - tile * S::kTile;
    if (first < z.rows && left >= S::kTile) {
      tile_forward<true, T>(state, rows, at, at + S::kTileBytes, S::kTile, scale);
    } else if (first < z.rows) {
      tile_forward<false, T>(state, rows, at, at + S::kTileBytes, static_cast<int>(left), scale);
    }
    __syncthreads();
  }
  if (first >= z.rows) return;
  float each[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r] + from_beside(state.sum[r], 1);
    sum += from_beside(sum, 2);
    each[r] = 1.f / sum;
    const int64_t row = first + lane() / 4 + 8 * r;
    if (lane() % 4 == 0 && row < z.rows) {
      z.logs[part.matrix * z.rows + row] = state.most[r] * scale + log2f(sum);
    }
  }
  store_rows<T, width>(mine, state.out, each[0], each[1], part.of<T>(z.out), z.out.row, first, z.rows, z.whole);
}

// ---- backward ----

// The product of dout, in shared memory, and out of each of a warp's rows: of row lane / 2.
template <typename T, int width>
__device__ inline float inner_of(Spot dout, const T* out, int64_t step, int64_t first, int64_t count, bool whole) {
  using S = Shape<width>;
  const int row = lane() / 2;
  float sum = 0;
  for (int pack = lane() % 2; pack < S::kPacks && first + row < count; pack += 2) {
    const uint4 bits = read_16(dout + static_cast<Spot>(row * S::kPitch + 16 * pack));
    Pack<T, 8> d, o;
    memcpy(&d, &bits, sizeof(bits));
    const T* const at = out + (first + row) * step + 8 * pack;
    if (whole) {
      load_own<true>(o, at, 8);
    } else {
      load_own<false>(o, at, 8);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += wide(d.value[i]) * wide(o.value[i]);
  }
  return sum + from_beside(sum, 1);
}

// dq, and inner, which the other kernel reads.
template <typename T, int width>
__global__ void __launch_bounds__(kBlock) attention_rows(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  after_the_one_before();
  const Part part(z, z.rows);
  const T *const k = part.of<T>(z.k), *const v = part.of<T>(z.v);
  const Spot own = shared_memory(), passing = own + 2 * S::kOwnBytes;
  const auto load = [&](int64_t tile) {
    const Spot to = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    load_rows<width, S::kTile>(to, k, z.k.row, tile * S::kTile, z.columns, z.whole);
    load_rows<width, S::kTile>(to + S::kTileBytes, v, z.v.row, tile * S::kTile, z.columns, z.whole);
  };
  load_rows<width, kOwn>(own, part.of<T>(z.q), z.q.row, part.first, z.rows, z.whole);
  load_rows<width, kOwn>(own + S::kOwnBytes, part.of<T>(z.dout), z.dout.row, part.first, z.rows, z.whole);
  load(0);
  copies_end();
  const Spot mine = own + static_cast<Spot>(first_of_warp() * S::kPitch);
  const int64_t first = part.first + first_of_warp();
  const float scale = z.scale * 1.44269504088896340736f;
  Fragments<width, S::kKept> q, dout;
  float inner[2], logs[2], dq[S::kPacks][4] = {};
  const int64_t tiles = (z.columns + S::kTile - 1) / S::kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    if (tile == 0 && first < z.rows) {
      q.begin(mine);
      dout.begin(mine + S::kOwnBytes);
      const float sum =
          inner_of<T, width>(mine + S::kOwnBytes, part.of<T>(z.out), z.out.row, first, z.rows, z.whole);
      const int64_t at = part.matrix * z.rows + first;
      if (lane() % 2 == 0 && first + lane() / 2 < z.rows) z.inner[at + lane() / 2] = sum;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = lane() / 4 + 8 * r;
        inner[r] = from_lane(sum, 2 * row);
        logs[r] = first + row < z.rows ? z.logs[at + row] : 0.f;
      }
    }
    const Spot at = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    const int64_t left = z.columns - tile * S::kTile;
#pragma unroll
    for (int j = 0; j < S::kTile / kSide; ++j) {
      if (first >= z.rows || kSide * j >= left) continue;
      const Spot here = at + static_cast<Spot>(kSide * S::kPitch * j);
      float s[2][4] = {}, d[2][4] = {};
      by_rows<T>(s, q, broad<width>(here));
      by_rows<T>(d, dout, broad<width>(here + S::kTileBytes));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = i % 4 / 2;
        const bool there = kSide * j + i / 4 * 8 + lane() % 4 * 2 + i % 2 < left;
        const float p = there ? power_of_2(s[i / 4][i % 4] * scale - logs[r]) : 0.f;
        s[i / 4][i % 4] = p * (d[i / 4][i % 4] - inner[r]);
      }
      unsigned a[4];
      turn<T>(a, s);
      by_columns<T, width>(dq, a, tall<width>(here));
    }
    __syncthreads();
  }
  if (first >= z.rows) return;
  store_rows<T, width>(mine, dq, z.scale, z.scale, part.of<T>(z.dq), z.dq.row, first, z.rows, z.whole);
}

// dk and dv.  Behind the last row of q and dout are zeros, so whatever p is there, nothing is added.
template <typename T, int width>
__global__ void __launch_bounds__(kBlock) attention_columns(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  constexpr Spot kNumbers = 4 * S::kTile, kStage = 2 * S::kTileBytes + 2 * kNumbers;
  after_the_one_before();
  const Part part(z, z.columns);
  const T *const q = part.of<T>(z.q), *const dout = part.of<T>(z.dout);
  const float *const logs = z.logs + part.matrix * z.rows, *const inner = z.inner + part.matrix * z.rows;
  const Spot own = shared_memory(), passing = own + 2 * S::kOwnBytes;
  const auto load = [&](int64_t tile) {
    const Spot to = passing + static_cast<Spot>(tile % 2) * kStage;
    load_rows<width, S::kTile>(to, q, z.q.row, tile * S::kTile, z.rows, z.whole);
    load_rows<width, S::kTile>(to + S::kTileBytes, dout, z.dout.row, tile * S::kTile, z.rows, z.whole);
    load_numbers<S::kTile>(to + 2 * S::kTileBytes, logs, tile * S::kTile, z.rows);
    load_numbers<S::kTile>(to + 2 * S::kTileBytes + kNumbers, inner, tile * S::kTile, z.rows);
  };
  load_rows<width, kOwn>(own, part.of<T>(z.k), z.k.row, part.first, z.columns, z.whole);
  load_rows<width, kOwn>(own + S::kOwnBytes, part.of<T>(z.v), z.v.row, part.first, z.columns, z.whole);
  load(0);
  copies_end();
  const Spot mine = own + static_cast<Spot>(first_of_warp() * S::kPitch);
  const int64_t first = part.first + first_of_warp();
  const float scale = z.scale * 1.44269504088896340736f;
  Fragments<width, S::kKept> k, v;
  float dk[S::kPacks][4] = {}, dv[S::kPacks][4] = {};
  const int64_t tiles = (z.rows + S::kTile - 1) / S::kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    if (tile == 0) {
      k.begin(mine);
      v.begin(mine + S::kOwnBytes);
    }
    const Spot at = passing + static_cast<Spot>(tile % 2) * kStage;
    const int64_t left = z.rows - tile * S::kTile;
#pragma unroll
    for (int j = 0; j < S::kTile / kSide; ++j) {
      if (first >= z.columns || kSide * j >= left) continue;
      const Spot here = at + static_cast<Spot>(kSide * S::kPitch * j);
      float s[2][4] = {}, d[2][4] = {};
      by_rows<T>(s, k, broad<width>(here));
      by_rows<T>(d, v, broad<width>(here + S::kTileBytes));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Spot number = at + 2 * S::kTileBytes + static_cast<Spot>(4 * (kSide * j + 8 * i + lane() % 4 * 2));
        const uint2 of_logs = read_8(number), of_inner = read_8(number + kNumbers);
        float log[2], level[2];
        memcpy(log, &of_logs, sizeof(log));
        memcpy(level, &of_inner, sizeof(level));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[i][e] = power_of_2(s[i][e] * scale - log[e % 2]);
          d[i][e] = s[i][e] * (d[i][e] - level[e % 2]);
        }
      }
      unsigned a[4];
      turn<T>(a, s);
      by_columns<T, width>(dv, a, tall<width>(here + S::kTileBytes));
      turn<T>(a, d);
      by_columns<T, width>(dk, a, tall<width>(here));
    }
    __syncthreads();
  }
  if (first >= z.columns) return;
  store_rows<T, width>(mine, dk, z.scale, z.scale, part.of<T>(z.dk), z.dk.row, first, z.columns, z.whole);
  const Spot last = mine + S::kOwnBytes;
  store_rows<T, width>(last, dv, 1.f, 1.f, part.of<T>(z.dv), z.dv.row, first, z.columns, z.whole);
}

// ---- which kernels ----

inline bool grid_of(dim3& grid, const Call& z, int64_t rows) {
  const int64_t blocks = z.size[0] * z.size[1] * z.size[2] * ((rows + kOwn - 1) / kOwn);
  grid = dim3(static_cast<unsigned>(blocks));
  return blocks <= 0x7fffffff;
}

template <typename T, int width>
int forward(const Call& z, cudaStream_t stream) {
  using S = Shape<width>;
  dim3 grid;
  if (!grid_of(grid, z, z.rows)) return finished(cudaErrorInvalidValue);
  constexpr int kBytes = S::kOwnBytes + 4 * S::kTileBytes;
  return finished(launch_with(attention_forward<T, width>, grid, kBlock, kBytes, stream, z));
}

template <typename T, int width>
int backward(const Call& z, cudaStream_t stream) {
  using S = Shape<width>;
  dim3 grid, other;
  if (!grid_of(grid, z, z.rows) || !grid_of(other, z, z.columns)) return finished(cudaErrorInvalidValue);
  constexpr int kBytes = 2 * S::kOwnBytes + 4 * S::kTileBytes, kNumbers = 4 * 4 * S::kTile;
  const cudaError_t error = launch_with(attention_rows<T, width>, grid, kBlock, kBytes, stream, z);
  if (error != cudaSuccess) return finished(error);
  return finished(
      launch_with(attention_columns<T, width>, other, kBlock, kBytes + kNumbers, stream, z));
}

}  // namespace
