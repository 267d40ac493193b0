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
constexpr int kSide = 16;  // rows and columns that are multiplied at a time

template <int width>
struct Shape {
  static constexpr int kPacks = width / 8;
  static constexpr int kSteps = (width + kSide - 1) / kSide;
  static constexpr int kPitch = 2 * kSide * kSteps + 16;  // bytes: rows of a matrix are in all banks
  static constexpr int kTile = kSteps > 4 ? 32 : 64;      // rows that pass at a time
  static constexpr int kTileBytes = kTile * kPitch;
  static constexpr bool kKept = kSteps <= 4;  // whether registers hold a warp's rows of two tensors
  // Bands of sixteen rows of a warp: what it reads of a tile is multiplied by each.
  static constexpr int kForward = 1, kRows = 1, kColumns = 1;

  // Rows of a block, and their bytes.
  static constexpr int own(int bands) { return kWarps * kSide * bands; }
  static constexpr int own_bytes(int bands) { return own(bands) * kPitch; }
};

// ---- where things are ----

// Of a block: its matrix, and the first of its rows.
struct Part {
  int64_t matrix, first;
  uint32_t digit[kOuter];

  __device__ Part(const Call& z, int64_t rows, int own) {
    const uint32_t parts = static_cast<uint32_t>((rows + own - 1) / own);
    uint32_t rest = blockIdx.x / parts;
    matrix = rest;
    first = int64_t{blockIdx.x % parts} * own;
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
__device__ inline int first_of_warp(int bands) { return static_cast<int>(threadIdx.x) / kLanes * kSide * bands; }

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

// A warp's own rows as first operands.
template <int width, int bands, bool kept>
struct Fragments {
  using S = Shape<width>;
  unsigned value[kept ? S::kSteps : 1][bands][4];
  Spot at;

  __device__ void begin(Spot rows) {
    at = tall<width>(rows);
    if constexpr (kept) {
#pragma unroll
      for (int k = 0; k < S::kSteps; ++k) load(value[k], k);
    }
  }

  __device__ const unsigned (&step(int k))[bands][4] {
    if constexpr (kept) {
      return value[k];
    } else {
      load(value[0], k);
      return value[0];
    }
  }

 private:
  __device__ void load(unsigned (&to)[bands][4], int k) const {
#pragma unroll
    for (int band = 0; band < bands; ++band) matrices_4<false>(to[band], at + 32 * k + kSide * S::kPitch * band);
  }
};

// sums (16 × 16) += own rows times sixteen rows of a tile, which are columns.
template <typename T, int width, int bands, bool kept>
__device__ inline void by_rows(float (&sums)[bands][2][4], Fragments<width, bands, kept>& own, Spot rows) {
#pragma unroll
  for (int k = 0; k < Shape<width>::kSteps; ++k) {
    unsigned b[4];
    matrices_4<false>(b, rows + 32 * k);
    const unsigned (&a)[bands][4] = own.step(k);
#pragma unroll
    for (int band = 0; band < bands; ++band) {
      multiply_16(sums[band][0], a[band], b[0], b[1], T());
      multiply_16(sums[band][1], a[band], b[2], b[3], T());
    }
  }
}

// sums (16 × width) += a (16 × 16) times sixteen rows of a tile.
template <typename T, int width, int bands>
__device__ inline void by_columns(float (&sums)[bands][Shape<width>::kPacks][4], const unsigned (&a)[bands][4],
                                  Spot rows) {
#pragma unroll
  for (int k = 0; k < Shape<width>::kSteps; ++k) {
    unsigned b[4];
    matrices_4<true>(b, rows + 32 * k);
#pragma unroll
    for (int band = 0; band < bands; ++band) {
      multiply_16(sums[band][2 * k], a[band], b[0], b[1], T());
      if (2 * k + 1 < Shape<width>::kPacks) multiply_16(sums[band][2 * k + 1], a[band], b[2], b[3], T());
    }
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
template <typename T, int bands>
__device__ inline void turn(unsigned (&to)[bands][4], const float (&from)[bands][2][4]) {
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[band][i] = both<T>(from[band][i / 2][i % 2 * 2], from[band][i / 2][i % 2 * 2 + 1]);
    }
  }
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

// What a lane knows of two rows of q in each band, after some columns.
template <int width, int bands>
struct Softmax {
  float most[bands][2], sum[bands][2];
  float out[bands][Shape<width>::kPacks][4];
};

// The columns of one tile, `left` of them; with `full` all.
template <bool full, typename T, int width, int bands>
__device__ inline void tile_forward(Softmax<width, bands>& state, Fragments<width, bands, true>& q, Spot k, Spot v,
                                    int left, float scale) {
  using S = Shape<width>;
  constexpr int kParts = S::kTile / kSide;
  float s[kParts][bands][2][4] = {};
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    if (full || kSide * j < left) by_rows<T>(s[j], q, broad<width>(k) + kSide * S::kPitch * j);
  }
  float level[bands][2];
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = state.most[band][r];
#pragma unroll
      for (int i = 0; i < 4 * kParts; ++i) {
        float& one = s[i / 4][band][i % 4 / 2][2 * r + i % 2];
        if (!full && i / 2 * 8 + lane() % 4 * 2 + i % 2 >= left) one = -INFINITY;
        most = fmaxf(most, one);
      }
      most = fmaxf(most, from_beside(most, 1));
      most = fmaxf(most, from_beside(most, 2));
      level[band][r] = most == -INFINITY ? 0.f : most * scale;  // of nothing but -inf the sum is 0
      const float less = power_of_2(state.most[band][r] * scale - level[band][r]);
      state.most[band][r] = most;
      state.sum[band][r] *= less;
#pragma unroll
      for (int j = 0; j < S::kPacks; ++j) {
        state.out[band][j][2 * r] *= less;
        state.out[band][j][2 * r + 1] *= less;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    if (!full && kSide * j >= left) continue;
#pragma unroll
    for (int i = 0; i < 8 * bands; ++i) {
      float& one = s[j][i / 8][i / 4 % 2][i % 4];
      one = power_of_2(one * scale - level[i / 8][i % 4 / 2]);
      state.sum[i / 8][i % 4 / 2] += one;
    }
    unsigned a[bands][4];
    turn<T>(a, s[j]);
    by_columns<T, width>(state.out, a, tall<width>(v) + kSide * S::kPitch * j);
  }
}

template <typename T, int width>
__global__ void __launch_bounds__(kBlock) attention_forward(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  constexpr int kBands = S::kForward;
  after_the_one_before();
  const Part part(z, z.rows, S::own(kBands));
  const T *const q = part.of<T>(z.q), *const k = part.of<T>(z.k), *const v = part.of<T>(z.v);
  const Spot own = shared_memory(), passing = own + S::own_bytes(kBands);
  const auto load = [&](int64_t tile) {
    const Spot to = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    load_rows<width, S::kTile>(to, k, z.k.row, tile * S::kTile, z.columns, z.whole);
    load_rows<width, S::kTile>(to + S::kTileBytes, v, z.v.row, tile * S::kTile, z.columns, z.whole);
  };
  load_rows<width, S::own(kBands)>(own, q, z.q.row, part.first, z.rows, z.whole);
  load(0);
  copies_end();
  const Spot mine = own + static_cast<Spot>(first_of_warp(kBands) * S::kPitch);
  const int64_t first = part.first + first_of_warp(kBands);
  const float scale = z.scale * 1.44269504088896340736f;  // powers are of 2
  Fragments<width, kBands, true> rows;
  Softmax<width, kBands> state{};
#pragma unroll
  for (int i = 0; i < 2 * kBands; ++i) state.most[i / 2][i % 2] = -INFINITY;
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
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
    const int64_t begin = first + kSide * band;
    if (begin >= z.rows) return;
    float each[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = state.sum[band][r] + from_beside(state.sum[band][r], 1);
      sum += from_beside(sum, 2);
      each[r] = 1.f / sum;
      const int64_t row = begin + lane() / 4 + 8 * r;
      if (lane() % 4 == 0 && row < z.rows) {
        z.logs[part.matrix * z.rows + row] = state.most[band][r] * scale + log2f(sum);
      }
    }
    store_rows<T, width>(mine + kSide * S::kPitch * band, state.out[band], each[0], each[1], part.of<T>(z.out),
                         z.out.row, begin, z.rows, z.whole);
  }
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
  constexpr int kBands = S::kRows, kOwnBytes = S::own_bytes(kBands);
  after_the_one_before();
  const Part part(z, z.rows, S::own(kBands));
  const T *const k = part.of<T>(z.k), *const v = part.of<T>(z.v);
  const Spot own = shared_memory(), passing = own + 2 * kOwnBytes;
  const auto load = [&](int64_t tile) {
    const Spot to = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    load_rows<width, S::kTile>(to, k, z.k.row, tile * S::kTile, z.columns, z.whole);
    load_rows<width, S::kTile>(to + S::kTileBytes, v, z.v.row, tile * S::kTile, z.columns, z.whole);
  };
  load_rows<width, S::own(kBands)>(own, part.of<T>(z.q), z.q.row, part.first, z.rows, z.whole);
  load_rows<width, S::own(kBands)>(own + kOwnBytes, part.of<T>(z.dout), z.dout.row, part.first, z.rows, z.whole);
  load(0);
  copies_end();
  const Spot mine = own + static_cast<Spot>(first_of_warp(kBands) * S::kPitch);
  const int64_t first = part.first + first_of_warp(kBands);
  const float scale = z.scale * 1.44269504088896340736f;
  Fragments<width, kBands, S::kKept> q, dout;
  float inner[kBands][2], logs[kBands][2], dq[kBands][S::kPacks][4] = {};
  const int64_t tiles = (z.columns + S::kTile - 1) / S::kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    if (tile == 0) {
      q.begin(mine);
      dout.begin(mine + kOwnBytes);
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        const int64_t begin = first + kSide * band, at = part.matrix * z.rows + begin;
        const Spot rows = mine + kOwnBytes + kSide * S::kPitch * band;
        const float sum = inner_of<T, width>(rows, part.of<T>(z.out), z.out.row, begin, z.rows, z.whole);
        if (lane() % 2 == 0 && begin + lane() / 2 < z.rows) z.inner[at + lane() / 2] = sum;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = lane() / 4 + 8 * r;
          inner[band][r] = from_lane(sum, 2 * row);
          logs[band][r] = begin + row < z.rows ? z.logs[at + row] : 0.f;
        }
      }
    }
    const Spot at = passing + static_cast<Spot>(tile % 2 * 2 * S::kTileBytes);
    const int64_t left = z.columns - tile * S::kTile;
#pragma unroll
    for (int j = 0; j < S::kTile / kSide; ++j) {
      if (first >= z.rows || kSide * j >= left) continue;
      const Spot here = at + static_cast<Spot>(kSide * S::kPitch * j);
      float s[kBands][2][4] = {}, d[kBands][2][4] = {};
      by_rows<T>(s, q, broad<width>(here));
      by_rows<T>(d, dout, broad<width>(here + S::kTileBytes));
#pragma unroll
      for (int i = 0; i < 8 * kBands; ++i) {
        const int band = i / 8, half = i / 4 % 2, r = i % 4 / 2;
        const bool there = kSide * j + half * 8 + lane() % 4 * 2 + i % 2 < left;
        const float p = there ? power_of_2(s[band][half][i % 4] * scale - logs[band][r]) : 0.f;
        s[band][half][i % 4] = p * (d[band][half][i % 4] - inner[band][r]);
      }
      unsigned a[kBands][4];
      turn<T>(a, s);
      by_columns<T, width>(dq, a, tall<width>(here));
    }
    __syncthreads();
  }
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
    const int64_t begin = first + kSide * band;
    if (begin >= z.rows) return;
    store_rows<T, width>(mine + kSide * S::kPitch * band, dq[band], z.scale, z.scale, part.of<T>(z.dq), z.dq.row,
                         begin, z.rows, z.whole);
  }
}

// dk and dv.  Behind the last row of q and dout are zeros, so whatever p is there, nothing is added.
template <typename T, int width>
__global__ void __launch_bounds__(kBlock) attention_columns(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  constexpr int kBands = S::kColumns, kOwnBytes = S::own_bytes(kBands);
  constexpr Spot kNumbers = 4 * S::kTile, kStage = 2 * S::kTileBytes + 2 * kNumbers;
  after_the_one_before();
  const Part part(z, z.columns, S::own(kBands));
  const T *const q = part.of<T>(z.q), *const dout = part.of<T>(z.dout);
  const float *const logs = z.logs + part.matrix * z.rows, *const inner = z.inner + part.matrix * z.rows;
  const Spot own = shared_memory(), passing = own + 2 * kOwnBytes;
  const auto load = [&](int64_t tile) {
    const Spot to = passing + static_cast<Spot>(tile % 2) * kStage;
    load_rows<width, S::kTile>(to, q, z.q.row, tile * S::kTile, z.rows, z.whole);
    load_rows<width, S::kTile>(to + S::kTileBytes, dout, z.dout.row, tile * S::kTile, z.rows, z.whole);
    load_numbers<S::kTile>(to + 2 * S::kTileBytes, logs, tile * S::kTile, z.rows);
    load_numbers<S::kTile>(to + 2 * S::kTileBytes + kNumbers, inner, tile * S::kTile, z.rows);
  };
  load_rows<width, S::own(kBands)>(own, part.of<T>(z.k), z.k.row, part.first, z.columns, z.whole);
  load_rows<width, S::own(kBands)>(own + kOwnBytes, part.of<T>(z.v), z.v.row, part.first, z.columns, z.whole);
  load(0);
  copies_end();
  const Spot mine = own + static_cast<Spot>(first_of_warp(kBands) * S::kPitch);
  const int64_t first = part.first + first_of_warp(kBands);
  const float scale = z.scale * 1.44269504088896340736f;
  Fragments<width, kBands, S::kKept> k, v;
  float dk[kBands][S::kPacks][4] = {}, dv[kBands][S::kPacks][4] = {};
  const int64_t tiles = (z.rows + S::kTile - 1) / S::kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    if (tile == 0) {
      k.begin(mine);
      v.begin(mine + kOwnBytes);
    }
    const Spot at = passing + static_cast<Spot>(tile % 2) * kStage;
    const int64_t left = z.rows - tile * S::kTile;
#pragma unroll
    for (int j = 0; j < S::kTile / kSide; ++j) {
      if (first >= z.columns || kSide * j >= left) continue;
      const Spot here = at + static_cast<Spot>(kSide * S::kPitch * j);
      float s[kBands][2][4] = {}, d[kBands][2][4] = {};
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
        for (int e = 0; e < 4 * kBands; ++e) {
          float &p = s[e / 4][i][e % 4], &slope = d[e / 4][i][e % 4];
          p = power_of_2(p * scale - log[e % 2]);
          slope = p * (slope - level[e % 2]);
        }
      }
      unsigned a[kBands][4];
      turn<T>(a, s);
      by_columns<T, width>(dv, a, tall<width>(here + S::kTileBytes));
      turn<T>(a, d);
      by_columns<T, width>(dk, a, tall<width>(here));
    }
    __syncthreads();
  }
#pragma unroll
  for (int band = 0; band < kBands; ++band) {
    const int64_t begin = first + kSide * band;
    if (begin >= z.columns) return;
    const Spot by = mine + kSide * S::kPitch * band;
    store_rows<T, width>(by, dk[band], z.scale, z.scale, part.of<T>(z.dk), z.dk.row, begin, z.columns, z.whole);
    store_rows<T, width>(by + kOwnBytes, dv[band], 1.f, 1.f, part.of<T>(z.dv), z.dv.row, begin, z.columns,
                         z.whole);
  }
}

// ---- which kernels ----

// A block for so many rows of each matrix.
template <typename Kernel>
cudaError_t started(Kernel* kernel, const Call& z, int64_t rows, int own, int bytes, cudaStream_t stream) {
  const int64_t blocks = z.size[0] * z.size[1] * z.size[2] * ((rows + own - 1) / own);
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  return launch_with(kernel, dim3(static_cast<unsigned>(blocks)), kBlock, bytes, stream, z);
}

template <typename T, int width>
int forward(const Call& z, cudaStream_t stream) {
  using S = Shape<width>;
  constexpr int kBytes = S::own_bytes(S::kForward) + 4 * S::kTileBytes;
  return finished(started(attention_forward<T, width>, z, z.rows, S::own(S::kForward), kBytes, stream));
}

template <typename T, int width>
int backward(const Call& z, cudaStream_t stream) {
  using S = Shape<width>;
  constexpr int kTiles = 4 * S::kTileBytes, kNumbers = 4 * 4 * S::kTile;
  constexpr int kRowBytes = 2 * S::own_bytes(S::kRows) + kTiles;
  constexpr int kColumnBytes = 2 * S::own_bytes(S::kColumns) + kTiles + kNumbers;
  const cudaError_t error = started(attention_rows<T, width>, z, z.rows, S::own(S::kRows), kRowBytes, stream);
  if (error != cudaSuccess) return finished(error);
  return finished(
      started(attention_columns<T, width>, z, z.columns, S::own(S::kColumns), kColumnBytes, stream));
}

}  // namespace
