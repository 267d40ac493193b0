// ---- attention: softmax(q kᵀ scale) v of many matrices, and its gradient ---------------------------------
//
// A block has rows of one side, sixteen a warp, and rows of the other side pass through shared memory, a tile
// under way while one is multiplied.  Scores stay in registers: backward they are computed again, and
//   p = exp(s) / sum,  dv = pᵀ dout,  ds = p (dout vᵀ - inner),  dq = ds k scale,  dk = dsᵀ q scale
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
  static constexpr int kRowTileBytes = 2 * kTileBytes + 2 * 4 * kTile;  // of q and dout, and two numbers a row
  static constexpr bool kKept = kSteps <= 4;  // whether registers hold a warp's rows of two tensors

  // Blocks that a multiprocessor has at once.
  static constexpr int kForwardBlocks = kSteps > 4 ? 2 : 4, kRowBlocks = kForwardBlocks;
  static constexpr int kColumnBlocks = kSteps > 4 ? 2 : 3;

  static constexpr int row_tile_bytes(bool added) { return kRowTileBytes + (added ? 8 * kMasks * kTile : 0); }
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

__device__ inline int lane() { return static_cast<int>(threadIdx.x % kLanes); }
__device__ inline int first_of_warp() { return static_cast<int>(threadIdx.x / kLanes) * kSide; }

// What a thread copies of a matrix into shared memory, row by row of the block's: 16 bytes of each `kDown`th
// row, zeros behind the last row and the width.
template <int width, typename T>
class Rows {
  using S = Shape<width>;
  static constexpr int kPacks = 2 * S::kSteps, kAcross = kPacks > 8 ? 16 : kPacks > 4 ? 8 : kPacks > 2 ? 4 : 2;
  static constexpr int kDown = kBlock / kAcross;

 public:
  // Of `count` rows those from `first` on.
  __device__ Rows(const T* from, int64_t step, int64_t first, int64_t count, bool whole)
      : pack_(static_cast<int>(threadIdx.x % kAcross)), row_(static_cast<int>(threadIdx.x / kAcross)),
        left_(static_cast<int>(count - first) - row_), step_(kDown * step),
        at_(from + (first + row_) * step + 8 * pack_), to_(static_cast<Spot>(row_ * S::kPitch + 16 * pack_)), whole_(whole) {}

  // The next `rows`.
  template <int rows>
  __device__ void load(Spot to) {
    static_assert(rows % kDown == 0);
    if (kPacks == kAcross || pack_ < kPacks) {
      if (whole_) {
#pragma unroll
        for (int i = 0; i < rows; i += kDown) {
          copy_16(to + to_ + static_cast<Spot>(i * S::kPitch), at_, i < left_ && pack_ < S::kPacks);
          at_ += step_;
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < rows; i += kDown) {
          Pack<T, 8> values;
          ::load<false>(values, at_, i < left_ && pack_ < S::kPacks ? 8 : 0);
          uint4 bits;
          memcpy(&bits, &values, sizeof(bits));
          write_16(to + to_ + static_cast<Spot>(i * S::kPitch), bits);
          at_ += step_;
        }
      }
    }
    left_ -= rows;
  }

 private:
  const int pack_, row_;
  int left_;
  const int64_t step_;
  const T* at_;
  const Spot to_;
  const bool whole_;
};

// One number for each row, zeros behind the last.
template <int rows>
__device__ inline void load_numbers(Spot to, const float* from, int64_t first, int64_t count) {
  const int i = static_cast<int>(threadIdx.x);
  static_assert(rows <= kBlock);
  if (i >= rows) return;
  const bool there = first + i < count;
  copy_4(to + static_cast<Spot>(4 * i), there ? from + first + i : from, there);
}

// Where each row has what is added to its scores.
template <int rows>
__device__ inline void place_rows(Spot to, const Call& z, int64_t matrix, int64_t first) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= rows || first + i >= z.rows) return;
  const Masks<Call> masks(z, matrix * z.rows + first + i);
#pragma unroll
  for (int m = 0; m < kMasks; ++m) {
    uint2 bits;
    memcpy(&bits, &masks.begin[m], sizeof(bits));
    write_8(to + static_cast<Spot>(8 * (kMasks * i + m)), bits);
  }
}

// What is added to the scores of a lane's two rows, over their scale, by which all is multiplied; and where their
// gradient is.
template <bool added>
struct Additions {
  __device__ Additions(const Call&, int64_t, int64_t) {}
  __device__ void to(float (&)[2][4], int, int) const {}
  __device__ void keep_slopes(const float (&)[2][4], int, int) const {}
};

template <>
struct Additions<true> {
  const Call& z;
  const int64_t row;  // of all matrices, the lane's first
  const int left;     // rows from it on
  const float each;
  int64_t begin[2][kMasks];

  // Of rows of a matrix from `first` on.
  __device__ Additions(const Call& call, int64_t matrix, int64_t first)
      : z(call), row(matrix * call.rows + first + lane() / 4), left(static_cast<int>(call.rows - first) - lane() / 4),
        each(1.f / call.scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Masks<Call> masks(z, 8 * r < left ? row + 8 * r : 0);
      memcpy(begin[r], masks.begin, sizeof(masks.begin));
    }
  }

  // To sixteen columns from `column` on, as many as there are.
  __device__ void to(float (&s)[2][4], int column, int count) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = column + i / 4 * 8 + lane() % 4 * 2 + i % 2;
      if (at < count) s[i / 4][i % 4] += each * sum_at(z, begin[i % 4 / 2], at);
    }
  }

  // The gradient of those.
  __device__ void keep_slopes(const float (&s)[2][4], int column, int count) const {
    if (z.wide == nullptr) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = column + i / 4 * 8 + lane() % 4 * 2 + i % 2, down = i % 4 / 2 * 8;
      if (at < count && down < left) z.wide[(row + down) * z.columns + at] = s[i / 4][i % 4];
    }
  }
};

// ---- products ----

// Where a lane has its row of 16 × 16 elements: of a first operand, and of a second one that is columns of rows;
// and of a second operand whose rows are columns.
template <int width>
struct Places {
  Spot tall = static_cast<Spot>(lane() % 16 * Shape<width>::kPitch + lane() / 16 * 16);
  Spot broad = static_cast<Spot>((lane() / 16 * 8 + lane() % 8) * Shape<width>::kPitch + lane() / 8 % 2 * 16);
};

// A warp's own rows as first operands.
template <int width, bool kept>
struct Fragments {
  using S = Shape<width>;
  unsigned value[kept ? S::kSteps : 1][4];
  Spot at;

  // `tall` of its rows.
  __device__ void begin(Spot rows) {
    at = rows;
    if constexpr (kept) {
#pragma unroll
      for (int k = 0; k < S::kSteps; ++k) load(value[k], k);
    }
  }

  __device__ const unsigned (&step(int k))[4] {
    if constexpr (kept) {
      return value[k];
    } else {
      load(value[0], k);
      return value[0];
    }
  }

 private:
  __device__ void load(unsigned (&to)[4], int k) const {
    matrices_4<false>(to, at + 32 * k);
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
__device__ inline void by_columns(float (&sums)[Shape<width>::kPacks][4], const unsigned (&a)[4],
                                  Spot rows) {
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

// Rows of the other side, `count` of them, a tile at a time, while the next is under way: `load` begins the
// copy of the tile whose first row is so many.  `begin` once the block's own rows, whose copies are under way, are
// there; and where the warp has any, `take` of each tile, of which so many rows are left and, if `full`, all.
template <int rows, typename Load, typename Begin, typename Take>
__device__ __forceinline__ void pass_tiles(Spot passing, int bytes, int count, bool has_rows, const Load& load,
                                           const Begin& begin, const Take& take) {
  Spot tile = passing, other = passing + static_cast<Spot>(bytes);
  load(tile, 0);
  copies_end();
  for (int left = count; left > 0; left -= rows) {
    if (left > rows) load(other, count - left + rows);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    if (left == count) begin();
    if (has_rows && left >= rows) {
      take(std::true_type(), tile, left);
    } else if (has_rows) {
      take(std::false_type(), tile, left);
    }
    __syncthreads();
    const Spot next = other;
    other = tile, tile = next;
  }
}

// ---- forward ----

// What a lane knows of two rows of q, after some columns.
template <int width>
struct Softmax {
  float most[2], sum[2];
  float out[Shape<width>::kPacks][4];
};

// The columns of one tile, `left` of them; with `full` all.
template <bool full, typename T, int width, bool added>
__device__ inline void tile_forward(Softmax<width>& state, Fragments<width, true>& q, Spot tile,
                                    const Places<width>& in, int left, float scale,
                                    const Additions<added>& more, int columns) {
  using S = Shape<width>;
  constexpr int kParts = S::kTile / kSide;
  float s[kParts][2][4] = {};
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    if (!full && kSide * j >= left) continue;
    by_rows<T>(s[j], q, tile + in.broad + kSide * S::kPitch * j);
    more.to(s[j], columns - left + kSide * j, columns);
  }
  float level[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = state.most[r];
#pragma unroll
    for (int i = 0; i < 4 * kParts; ++i) {
      float& one = s[i / 4][i % 4 / 2][2 * r + i % 2];
      if (!full && i / 2 * 8 + lane() % 4 * 2 + i % 2 >= left) one = -INFINITY;
      most = fmaxf(most, one);
    }
    most = fmaxf(most, from_beside(most, 1));
    most = fmaxf(most, from_beside(most, 2));
    level[r] = most == -INFINITY ? 0.f : most * scale;  // of nothing but -inf the sum is 0
    const float less = power_of_2(state.most[r] * scale - level[r]);
    state.most[r] = most;
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
    by_columns<T, width>(state.out, a, tile + in.tall + S::kTileBytes + kSide * S::kPitch * j);
  }
}

template <typename T, int width, bool added>
__global__ void __launch_bounds__(kBlock, Shape<width>::kForwardBlocks)
    attention_forward(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  after_the_one_before();
  const Part part(z, z.rows);
  const Spot own = shared_memory(), passing = own + S::kOwnBytes;
  Rows<width, T>(part.of<T>(z.q), z.q.row, part.first, z.rows, z.whole).template load<kOwn>(own);
  Rows<width, T> k(part.of<T>(z.k), z.k.row, 0, z.columns, z.whole);
  Rows<width, T> v(part.of<T>(z.v), z.v.row, 0, z.columns, z.whole);
  const auto load = [&](Spot to, int64_t) {
    k.template load<S::kTile>(to);
    v.template load<S::kTile>(to + S::kTileBytes);
  };
  const Spot mine = own + static_cast<Spot>(first_of_warp() * S::kPitch);
  const int64_t first = part.first + first_of_warp();
  const float scale = z.scale * 1.44269504088896340736f;  // powers are of 2
  const Places<width> in;
  Fragments<width, true> rows;
  const Additions<added> more(z, part.matrix, first);
  Softmax<width> state{};
  state.most[0] = state.most[1] = -INFINITY;
  const int columns = static_cast<int>(z.columns);
  pass_tiles<S::kTile>(
      passing, 2 * S::kTileBytes, columns, first < z.rows, load, [&] { rows.begin(mine + in.tall); },
      [&](auto full, Spot tile, int left) {
        tile_forward<full, T>(state, rows, tile, in, left, scale, more, columns);
      });
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

// What a lane knows of two rows of q, and their gradient.
template <int width>
struct Slopes {
  float inner[2], logs[2];
  float dq[Shape<width>::kPacks][4];
};

// The columns of one tile, `left` of them; with `full` all.
template <bool full, typename T, int width, bool kept, bool added>
__device__ inline void tile_rows(Slopes<width>& state, Fragments<width, kept>& q,
                                 Fragments<width, kept>& dout, Spot tile, const Places<width>& in, int left,
                                 float scale, const Additions<added>& more, int columns) {
  using S = Shape<width>;
#pragma unroll
  for (int j = 0; j < S::kTile / kSide; ++j) {
    if (!full && kSide * j >= left) continue;
    const Spot here = tile + static_cast<Spot>(kSide * S::kPitch * j);
    float s[2][4] = {}, d[2][4] = {};
    by_rows<T>(s, q, here + in.broad);
    more.to(s, columns - left + kSide * j, columns);
    by_rows<T>(d, dout, here + in.broad + S::kTileBytes);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int half = i / 4, r = i % 4 / 2;
      const bool there = full || kSide * j + half * 8 + lane() % 4 * 2 + i % 2 < left;
      const float p = there ? power_of_2(s[half][i % 4] * scale - state.logs[r]) : 0.f;
      s[half][i % 4] = p * (d[half][i % 4] - state.inner[r]);
    }
    more.keep_slopes(s, columns - left + kSide * j, columns);
    unsigned a[4];
    turn<T>(a, s);
    by_columns<T, width>(state.dq, a, here + in.tall);
  }
}

// dq, and inner, which the other kernel reads.
template <typename T, int width, bool added>
__global__ void __launch_bounds__(kBlock, Shape<width>::kRowBlocks)
    attention_rows(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  after_the_one_before();
  const Part part(z, z.rows);
  const Spot own = shared_memory(), passing = own + 2 * S::kOwnBytes;
  Rows<width, T>(part.of<T>(z.q), z.q.row, part.first, z.rows, z.whole).template load<kOwn>(own);
  Rows<width, T>(part.of<T>(z.dout), z.dout.row, part.first, z.rows, z.whole)
      .template load<kOwn>(own + S::kOwnBytes);
  Rows<width, T> k(part.of<T>(z.k), z.k.row, 0, z.columns, z.whole);
  Rows<width, T> v(part.of<T>(z.v), z.v.row, 0, z.columns, z.whole);
  const auto load = [&](Spot to, int64_t) {
    k.template load<S::kTile>(to);
    v.template load<S::kTile>(to + S::kTileBytes);
  };
  const Spot mine = own + static_cast<Spot>(first_of_warp() * S::kPitch);
  const int64_t first = part.first + first_of_warp();
  const float scale = z.scale * 1.44269504088896340736f;
  const Places<width> in;
  Fragments<width, S::kKept> q, dout;
  const Additions<added> more(z, part.matrix, first);
  Slopes<width> state{};
  const auto begin = [&] {
    q.begin(mine + in.tall);
    dout.begin(mine + in.tall + S::kOwnBytes);
    const int64_t at = part.matrix * z.rows + first;
    const Spot rows = mine + S::kOwnBytes;
    const float sum = inner_of<T, width>(rows, part.of<T>(z.out), z.out.row, first, z.rows, z.whole);
    if (lane() % 2 == 0 && first + lane() / 2 < z.rows) z.inner[at + lane() / 2] = sum;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane() / 4 + 8 * r;
      state.inner[r] = from_lane(sum, 2 * row);
      state.logs[r] = first + row < z.rows ? z.logs[at + row] : 0.f;
    }
  };
  const int columns = static_cast<int>(z.columns);
  pass_tiles<S::kTile>(passing, 2 * S::kTileBytes, columns, first < z.rows, load, begin,
                       [&](auto full, Spot tile, int left) {
                         tile_rows<full, T>(state, q, dout, tile, in, left, scale, more, columns);
                       });
  if (first >= z.rows) return;
  store_rows<T, width>(mine, state.dq, z.scale, z.scale, part.of<T>(z.dq), z.dq.row, first, z.rows, z.whole);
}

// To the scores of a lane's columns, those of `first` on, and of sixteen of a tile's rows.
__device__ inline void add_columns(float (&s)[2][4], Spot places, const Call& z, int row, int left, int first) {
  const float each = 1.f / z.scale;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = row + i / 4 * 8 + lane() % 4 * 2 + i % 2;
    const int column = first + i % 4 / 2 * 8 + lane() / 4;
    if (at >= left || column >= z.columns) continue;
    int64_t begin[kMasks];
#pragma unroll
    for (int m = 0; m < kMasks; ++m) {
      const uint2 bits = read_8(places + static_cast<Spot>(8 * (kMasks * at + m)));
      memcpy(&begin[m], &bits, sizeof(bits));
    }
    s[i / 4][i % 4] += each * sum_at(z, begin, column);
  }
}

// The gradients of a lane's rows of k and v.
template <int width>
struct Sums {
  float dk[Shape<width>::kPacks][4], dv[Shape<width>::kPacks][4];
};

// The rows of one tile, `left` of them; with `full` all.
template <bool full, bool added, typename T, int width, bool kept>
__device__ inline void tile_columns(Sums<width>& state, Fragments<width, kept>& k,
                                    Fragments<width, kept>& v, Spot tile, const Places<width>& in, int left,
                                    float scale, [[maybe_unused]] const Call& z, [[maybe_unused]] int first) {
  using S = Shape<width>;
  const Spot numbers = tile + 2 * S::kTileBytes + static_cast<Spot>(lane() % 4 * 8);
#pragma unroll
  for (int j = 0; j < S::kTile / kSide; ++j) {
    if (!full && kSide * j >= left) continue;
    const Spot here = tile + static_cast<Spot>(kSide * S::kPitch * j);
    float s[2][4] = {}, d[2][4] = {};
    by_rows<T>(s, k, here + in.broad);
    if constexpr (added) add_columns(s, tile + S::kRowTileBytes, z, kSide * j, left, first);
    by_rows<T>(d, v, here + in.broad + S::kTileBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Spot number = numbers + static_cast<Spot>(4 * (kSide * j + 8 * i));
      const uint2 of_logs = read_8(number), of_inner = read_8(number + 4 * S::kTile);
      float log[2], level[2];
      memcpy(log, &of_logs, sizeof(log));
      memcpy(level, &of_inner, sizeof(level));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float &p = s[i][e], &slope = d[i][e];
        p = power_of_2(p * scale - log[e % 2]);
        slope = p * (slope - level[e % 2]);
      }
    }
    unsigned a[4];
    turn<T>(a, s);
    by_columns<T, width>(state.dv, a, here + in.tall + S::kTileBytes);
    turn<T>(a, d);
    by_columns<T, width>(state.dk, a, here + in.tall);
  }
}

// dk and dv.  Behind the last row of q and dout are zeros, so whatever p is there, nothing is added.
template <typename T, int width, bool added>
__global__ void __launch_bounds__(kBlock, Shape<width>::kColumnBlocks)
    attention_columns(const __grid_constant__ RelayWgradAttentionCall z) {
  using S = Shape<width>;
  after_the_one_before();
  const Part part(z, z.columns);
  const float *const logs = z.logs + part.matrix * z.rows, *const inner = z.inner + part.matrix * z.rows;
  const Spot own = shared_memory(), passing = own + 2 * S::kOwnBytes;
  Rows<width, T>(part.of<T>(z.k), z.k.row, part.first, z.columns, z.whole).template load<kOwn>(own);
  Rows<width, T>(part.of<T>(z.v), z.v.row, part.first, z.columns, z.whole)
      .template load<kOwn>(own + S::kOwnBytes);
  Rows<width, T> q(part.of<T>(z.q), z.q.row, 0, z.rows, z.whole);
  Rows<width, T> dout(part.of<T>(z.dout), z.dout.row, 0, z.rows, z.whole);
  const auto load = [&](Spot to, int64_t row) {
    q.template load<S::kTile>(to);
    dout.template load<S::kTile>(to + S::kTileBytes);
    load_numbers<S::kTile>(to + 2 * S::kTileBytes, logs, row, z.rows);
    load_numbers<S::kTile>(to + 2 * S::kTileBytes + 4 * S::kTile, inner, row, z.rows);
    if constexpr (added) place_rows<S::kTile>(to + S::kRowTileBytes, z, part.matrix, row);
  };
  const Spot mine = own + static_cast<Spot>(first_of_warp() * S::kPitch);
  const int64_t first = part.first + first_of_warp();
  const float scale = z.scale * 1.44269504088896340736f;
  const Places<width> in;
  Fragments<width, S::kKept> k, v;
  Sums<width> state{};
  const auto begin = [&] {
    k.begin(mine + in.tall);
    v.begin(mine + in.tall + S::kOwnBytes);
  };
  pass_tiles<S::kTile>(
      passing, S::row_tile_bytes(added), static_cast<int>(z.rows), first < z.columns, load, begin,
      [&](auto full, Spot tile, int left) {
        tile_columns<full, added, T>(state, k, v, tile, in, left, scale, z, static_cast<int>(first));
      });
  if (first >= z.columns) return;
  store_rows<T, width>(mine, state.dk, z.scale, z.scale, part.of<T>(z.dk), z.dk.row, first, z.columns, z.whole);
  const Spot last = mine + S::kOwnBytes;
  store_rows<T, width>(last, state.dv, 1.f, 1.f, part.of<T>(z.dv), z.dv.row, first, z.columns, z.whole);
}

// ---- which kernels ----

// A block for so many rows of each matrix.
template <typename Kernel>
cudaError_t started(Kernel* kernel, const Call& z, int64_t rows, int bytes, cudaStream_t stream) {
  const int64_t blocks = z.size[0] * z.size[1] * z.size[2] * ((rows + kOwn - 1) / kOwn);
  // A row's number is of 32 bits where something is added to it.
  const bool known = z.masks == 0 || z.size[0] * z.size[1] * z.size[2] * z.rows <= 0x7fffffff;
  if (blocks > 0x7fffffff || !known) return cudaErrorInvalidValue;
  return launch_with(kernel, dim3(static_cast<unsigned>(blocks)), kBlock, bytes, stream, z);
}

template <typename T, int width, bool added>
int forward(const Call& z, cudaStream_t stream) {
  using S = Shape<width>;
  constexpr int kBytes = S::kOwnBytes + 4 * S::kTileBytes;
  return finished(started(attention_forward<T, width, added>, z, z.rows, kBytes, stream));
}

template <typename T, int width, bool added>
int backward(const Call& z, cudaStream_t stream) {
  using S = Shape<width>;
  constexpr int kRowBytes = 2 * S::kOwnBytes + 4 * S::kTileBytes;
  constexpr int kColumnBytes = 2 * S::kOwnBytes + 2 * S::row_tile_bytes(added);
  const cudaError_t error = started(attention_rows<T, width, added>, z, z.rows, kRowBytes, stream);
  if (error != cudaSuccess) return finished(error);
  return finished(
      started(attention_columns<T, width, added>, z, z.columns, kColumnBytes, stream));
}

}  // namespace
