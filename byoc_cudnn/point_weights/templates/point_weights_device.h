// ---- weight gradients of convolutions of one pixel, many in one launch ------------------------------
//
// A block has a tile of one weight's filters and channels, and a thread kEach times kEach of them; it
// goes over all rows, so sums are in one order.  Rows come by shared memory, kStep at a time, the next
// ones on the way while these are added.  The block of a tile's first channels has the bias' sums too.
// Loads are plain ones: those of read-only data may move above the wait for the kernel before.

namespace {

constexpr int kMost = 56;  // weights of a launch: their table is the kernel's parameter
constexpr int kSide = 64, kEach = 4, kStep = 16;
constexpr int kLoads = kStep * kSide / kThreads;  // of a thread, of each operand

struct Table {
  const void *dy[kMost], *x[kMost];
  void* dw[kMost];
  float* db[kMost];
  int n[kMost], k[kMost], c[kMost];
  uint32_t first[kMost + 1];  // of a weight's blocks
};

// Rows from `first` on, of the columns of a tile; zeros beyond both.
template <typename T>
__device__ inline void load_rows(float (&out)[kLoads], const T* from, int first, int rows, int column,
                                 int columns) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = first + at / kSide, own = column + at % kSide;
    out[i] = row < rows && own < columns ? wide(from[int64_t{row} * columns + own]) : 0.0f;
  }
}

__device__ inline void keep_rows(float4 (*kept)[kSide / kEach], const float (&rows)[kLoads]) {
  float* const to = &kept[0][0].x;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[i * kThreads + static_cast<int>(threadIdx.x)] = rows[i];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    products(const __grid_constant__ Table table, int weights) {
  __shared__ float4 of_y[kStep][kSide / kEach], of_x[kStep][kSide / kEach];
  begin();
  const int item = item_of(table.first, weights);
  const auto* dy = static_cast<const T*>(table.dy[item]);
  const auto* x = static_cast<const T*>(table.x[item]);
  auto* dw = static_cast<T*>(table.dw[item]);
  float* const db = table.db[item];
  const int rows = table.n[item], filters = table.k[item], channels = table.c[item];
  const int across = (channels + kSide - 1) / kSide;
  const int tile = static_cast<int>(blockIdx.x - table.first[item]);
  const int filter = tile / across * kSide, channel = tile % across * kSide;
  const int own_y = static_cast<int>(threadIdx.x) / (kSide / kEach);
  const int own_x = static_cast<int>(threadIdx.x) % (kSide / kEach);
  const bool sums = db != nullptr && channel == 0 && threadIdx.x < kSide;
  float total[kEach][kEach] = {}, bias = 0.0f;
  float next_y[kLoads], next_x[kLoads];
  load_rows(next_y, dy, 0, rows, filter, filters);
  load_rows(next_x, x, 0, rows, channel, channels);
  for (int first = 0; first < rows; first += kStep) {
    __syncthreads();
    keep_rows(of_y, next_y);
    keep_rows(of_x, next_x);
    __syncthreads();
    load_rows(next_y, dy, first + kStep, rows, filter, filters);
    load_rows(next_x, x, first + kStep, rows, channel, channels);
#pragma unroll
    for (int row = 0; row < kStep; ++row) {
      const float4 y4 = of_y[row][own_y], x4 = of_x[row][own_x];
      const float a[kEach] = {y4.x, y4.y, y4.z, y4.w}, b[kEach] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) total[i][j] += a[i] * b[j];
      }
      if (sums) bias += (&of_y[row][0].x)[threadIdx.x];
    }
  }
  if (sums && filter + static_cast<int>(threadIdx.x) < filters) db[filter + threadIdx.x] = bias;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int k = filter + own_y * kEach + i, c = channel + own_x * kEach + j;
      if (k < filters && c < channels) dw[int64_t{k} * channels + c] = narrow<T>(total[i][j]);
    }
  }
}

template <typename T>
int point_weights(const RelayWgradPointWeightsCall& call, cudaStream_t stream) {
  for (int64_t start = 0; start < call.count; start += kMost) {
    Table table{};
    const int weights = static_cast<int>(call.count - start < kMost ? call.count - start : kMost);
    uint32_t blocks = 0;
    for (int i = 0; i < weights; ++i) {
      const RelayWgradPointWeight& one = call.products[start + i];
      table.dy[i] = one.dy;
      table.x[i] = one.x;
      table.dw[i] = one.dw;
      table.db[i] = one.db;
      table.n[i] = static_cast<int>(one.n);
      table.k[i] = static_cast<int>(one.k);
      table.c[i] = static_cast<int>(one.c);
      table.first[i] = blocks;
      blocks += static_cast<uint32_t>((one.k + kSide - 1) / kSide * ((one.c + kSide - 1) / kSide));
    }
    table.first[weights] = blocks;
    const cudaError_t error = launch(products<T>, dim3(blocks), kThreads, stream, table, weights);
    if (error != cudaSuccess) return finished(error);
  }
  return 0;
}

}  // namespace
