// ---- casts, transpositions and scaling of many tensors in one launch --------------------------------
//
// A block has some kTile elements of one tensor.  What is transposed goes through shared memory, so that
// both sides have whole runs of memory, 16 bytes a thread where they lie so, and few places are divided.
// Loads are plain ones: those of read-only data may move above the wait for the kernel before.

namespace {

constexpr int kMost = 64;  // tensors of a launch: their table is the kernel's parameter
constexpr int kEach = 8;   // elements of a thread
constexpr int kTile = kThreads * kEach;

// What a block has of a tensor of (blocks, rows, columns): whole blocks of it, or of one some rows or
// columns, all of them where those are few.  A run is of kRun elements at least, and begins at a multiple of it.
struct Tile {
  static constexpr uint32_t kRun = 16, kFew = 64;
  uint32_t blocks, rows, columns;
  __host__ __device__ Tile(uint32_t all_rows, uint32_t all_columns)
      : blocks(1), rows(all_rows), columns(all_columns) {
    if (all_rows * all_columns <= kTile) {
      blocks = kTile / (all_rows * all_columns);
      if (blocks > kRun) blocks -= blocks % kRun;
    } else if (all_columns <= kFew) {
      rows = kTile / all_columns / kRun * kRun;
    } else if (all_rows <= kFew) {
      columns = kTile / all_rows / kRun * kRun;
    } else {
      rows = kFew;
      columns = kTile / kFew;
    }
  }
  __host__ __device__ uint32_t count(uint32_t all_blocks, uint32_t all_rows, uint32_t all_columns) const {
    return (all_blocks + blocks - 1) / blocks * ((all_rows + rows - 1) / rows) *
           ((all_columns + columns - 1) / columns);
  }
};

struct Table {
  const void* source[kMost];
  void* result[kMost];
  uint32_t rows[kMost], columns[kMost], count[kMost];
  uint32_t first[kMost + 1];  // of a tensor's blocks
  bool whole[kMost];          // nothing is transposed, and accesses of 16 bytes fit
};

// What a launch of filled axes knows besides; the sizes of `Table` are the source's rows and columns,
// `count` is the result's.
struct Fills {
  uint32_t from[kMost][3], to[kMost][3];
};

struct NoFills {};

// Where an element of a filled axis lies in the source's, `absent` where it is a zero.
constexpr uint32_t kAbsent = ~0u;

__device__ inline uint32_t source_of(uint32_t at, uint32_t from, uint32_t to) {
  const uint32_t pack = at / to, within = at - pack * to;
  return within < from ? pack * from + within : kAbsent;
}

template <typename S, typename D>
__global__ void __launch_bounds__(kThreads)
    filled(const __grid_constant__ Table table, const __grid_constant__ Fills fills,
           const float* scale, int tensors) {
  begin();
  const int item = item_of(table.first, tensors);
  const auto* source = static_cast<const S*>(table.source[item]);
  auto* result = static_cast<D*>(table.result[item]);
  const uint32_t start = (blockIdx.x - table.first[item]) * kTile, count = table.count[item];
  const float factor = scale == nullptr ? 1.0f : *scale;
  const uint32_t *from = fills.from[item], *to = fills.to[item];
  const uint32_t rows = table.rows[item], columns = table.columns[item];
  const uint32_t new_rows = rows / from[1] * to[1], new_columns = columns / from[2] * to[2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t at = start + i * kThreads + threadIdx.x;
    if (at >= count) break;
    const uint32_t rest = at / new_rows;
    const uint32_t row = source_of(at % new_rows, from[1], to[1]);
    const uint32_t column = source_of(rest % new_columns, from[2], to[2]);
    const uint32_t block = source_of(rest / new_columns, from[0], to[0]);
    const bool zero = row == kAbsent || column == kAbsent || block == kAbsent;
    const float x = zero ? 0.0f : wide(source[(block * rows + row) * columns + column]);
    result[at] = narrow<D>(scale == nullptr || zero ? x : x * factor);
  }
}

// N elements of memory as one access.
template <typename T, uint32_t N>
struct alignas(N * sizeof(T)) Several {
  T of[N];
};

// Calls `each(where, how many of N, offset)` for all pieces of `runs` runs of `length` elements, of which one
// begins `apart` elements after the other: pieces of N where all of them lie at multiples of that.  `beside`:
// neighbouring threads have neighbouring runs, so that what they write to shared memory is in other banks.
template <uint32_t N, typename T, typename Each>
__device__ inline void each_piece(const T* base, uint32_t runs, uint32_t length, uint32_t apart, bool beside,
                                  Each each) {
  const bool fits = reinterpret_cast<uintptr_t>(base) % (N * sizeof(T)) == 0 && length % N == 0 &&
                    (apart % N == 0 || runs == 1);
  const uint32_t step = fits ? N : 1, pieces = length / step;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < runs * pieces; i += kThreads) {
    const uint32_t by = beside ? runs : pieces, high = runs == 1 ? 0 : i / by, low = i - high * by;
    each(beside ? low : high, (beside ? high : low) * step, fits);
  }
}

// A block's part of a tensor, transposed.
template <typename S, typename D, typename Value>
__device__ inline void turned(const S* source, D* result, uint32_t which, uint32_t count, uint32_t rows,
                              uint32_t columns, Value value) {
  constexpr uint32_t kIn = 16 / sizeof(S), kOut = 16 / sizeof(D);
  // Columns one behind the other, those of a part of the rows with room between them.
  alignas(16) __shared__ D kept[kTile + Tile::kFew * kOut];
  const Tile tile(rows, columns);
  const uint32_t across = (columns + tile.columns - 1) / tile.columns;
  const uint32_t down = (rows + tile.rows - 1) / tile.rows, rest = which / across;
  const uint32_t block = rest / down * tile.blocks, row = rest % down * tile.rows;
  const uint32_t column = which % across * tile.columns, all = rows * columns;
  const uint32_t blocks = min(tile.blocks, count / all - block);
  const uint32_t some_rows = min(tile.rows, rows - row), some_columns = min(tile.columns, columns - column);
  const bool whole_rows = some_columns == columns, whole_columns = some_rows == rows;
  const uint32_t high = whole_columns ? rows : some_rows + kOut;  // from one column to the next
  const S* const from = source + block * all + row * columns + column;
  each_piece<kIn>(
      from, whole_rows ? 1 : some_rows, whole_rows ? blocks * some_rows * columns : some_columns, columns,
      !whole_rows && some_rows <= Tile::kRun,
      [&](uint32_t run, uint32_t offset, bool fits) {
        Several<S, kIn> in;
        const S* const at = from + run * columns + offset;
        if (fits) {
          in = *reinterpret_cast<const Several<S, kIn>*>(at);
        } else {
          in.of[0] = *at;
        }
        uint32_t r = whole_rows ? offset / columns : run, c = whole_rows ? offset - r * columns : offset;
        const uint32_t skipped = r / some_rows;  // blocks
        r -= skipped * some_rows;
        D* to = kept + skipped * all + c * high + r;
#pragma unroll
        for (uint32_t k = 0; k < kIn; ++k) {
          if (k > 0 && !fits) break;
          *to = value(in.of[k]);
          to += high;
          if (++c < columns || !whole_rows) continue;
          c = 0;
          to += 1 - static_cast<int>(columns * high);
          if (++r == some_rows) {
            r = 0;
            to += all - some_rows;
          }
        }
      });
  __syncthreads();
  D* const first = result + block * all + column * rows + row;
  each_piece<kOut>(
      first, whole_columns ? 1 : some_columns, whole_columns ? blocks * some_columns * rows : some_rows, rows,
      false,
      [&](uint32_t run, uint32_t offset, bool fits) {
        const D* const at = kept + run * high + offset;
        D* const to = first + run * rows + offset;
        if (fits) {
          *reinterpret_cast<Several<D, kOut>*>(to) = *reinterpret_cast<const Several<D, kOut>*>(at);
        } else {
          *to = *at;
        }
      });
}

template <typename S, typename D>
__global__ void __launch_bounds__(kThreads)
    moved(const __grid_constant__ Table table, const float* scale, int tensors) {
  begin();
  const int item = item_of(table.first, tensors);
  const auto* source = static_cast<const S*>(table.source[item]);
  auto* result = static_cast<D*>(table.result[item]);
  const uint32_t start = (blockIdx.x - table.first[item]) * kTile, count = table.count[item];
  const float factor = scale == nullptr ? 1.0f : *scale;
  auto value = [&](S x) { return narrow<D>(scale == nullptr ? wide(x) : wide(x) * factor); };
  if (table.whole[item] && start + kTile <= count) {
    const uint32_t at = start + threadIdx.x * kEach;
    alignas(16) S in[kEach];
    alignas(16) D out[kEach];
#pragma unroll
    for (int i = 0; i < int(sizeof(in) / 16); ++i) {
      reinterpret_cast<uint4*>(in)[i] = reinterpret_cast<const uint4*>(source + at)[i];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) out[i] = value(in[i]);
#pragma unroll
    for (int i = 0; i < int(sizeof(out) / 16); ++i) {
      reinterpret_cast<uint4*>(result + at)[i] = reinterpret_cast<const uint4*>(out)[i];
    }
    return;
  }
  const uint32_t rows = table.rows[item], columns = table.columns[item];
  if (rows == 1 || columns == 1) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t at = start + i * kThreads + threadIdx.x;
      if (at < count) result[at] = value(source[at]);
    }
    return;
  }
  turned(source, result, blockIdx.x - table.first[item], count, rows, columns, value);
}

template <typename S, typename D, bool kFilled>
int cast_transpose_all(const RelayWgradCastTransposesCall& call, cudaStream_t stream) {
  for (int64_t start = 0; start < call.count; start += kMost) {
    Table table{};
    std::conditional_t<kFilled, Fills, NoFills> fills{};
    const int tensors = static_cast<int>(call.count - start < kMost ? call.count - start : kMost);
    uint32_t blocks = 0;
    for (int i = 0; i < tensors; ++i) {
      const RelayWgradCastTranspose& item = call.tensors[start + i];
      const int64_t count = item.count(), rows = item.sizes[1], columns = item.sizes[2];
      table.source[i] = item.source;
      table.result[i] = item.result;
      table.rows[i] = static_cast<uint32_t>(rows);
      table.columns[i] = static_cast<uint32_t>(columns);
      table.count[i] = static_cast<uint32_t>(count);
      table.first[i] = blocks;
      const bool aligned = reinterpret_cast<uintptr_t>(item.source) % 16 == 0 &&
                           reinterpret_cast<uintptr_t>(item.result) % 16 == 0;
      table.whole[i] = aligned && (rows == 1 || columns == 1);
      if constexpr (kFilled) {
        for (int axis = 0; axis < 3; ++axis) {
          fills.from[i][axis] = static_cast<uint32_t>(item.fills[axis].from);
          fills.to[i][axis] = static_cast<uint32_t>(item.fills[axis].to);
        }
      }
      if (kFilled || rows == 1 || columns == 1) {
        blocks += static_cast<uint32_t>((count + kTile - 1) / kTile);
      } else {
        const Tile tile(table.rows[i], table.columns[i]);
        blocks += tile.count(static_cast<uint32_t>(item.sizes[0]), table.rows[i], table.columns[i]);
      }
    }
    table.first[tensors] = blocks;
    cudaError_t error;
    if constexpr (kFilled) {
      error = launch(filled<S, D>, dim3(blocks), kThreads, stream, table, fills, call.scale, tensors);
    } else {
      error = launch(moved<S, D>, dim3(blocks), kThreads, stream, table, call.scale, tensors);
    }
    if (error != cudaSuccess) return finished(error);
  }
  return 0;
}

}  // namespace
