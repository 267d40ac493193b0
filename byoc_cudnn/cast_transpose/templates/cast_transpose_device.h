// ---- casts, transpositions and scaling of many tensors in one launch --------------------------------
//
// A block writes kTile elements of one tensor, in order.  What is transposed is read where it lies: the
// lines that neighbours in the result are in serve the block's next elements from the first-level cache.
// Loads are plain ones: those of read-only data may move above the wait for the kernel before.

namespace {

constexpr int kMost = 64;  // tensors of a launch: their table is the kernel's parameter
constexpr int kEach = 8;   // elements of a thread
constexpr int kTile = kThreads * kEach;

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
  const uint32_t rows = table.rows[item], columns = table.columns[item], block = rows * columns;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t at = start + i * kThreads + threadIdx.x;
    if (at >= count) break;
    const uint32_t rest = at % block, column = rest / rows, row = rest % rows;
    result[at] = value(source[(at - rest) + row * columns + column]);
  }
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
      blocks += static_cast<uint32_t>((count + kTile - 1) / kTile);
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
