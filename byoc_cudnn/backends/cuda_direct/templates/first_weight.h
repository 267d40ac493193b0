// ---- first layers on tensor cores: the gradient of the filters ----------------------------------------------
//
// A product's rows are 16 terms, its columns 8 filters, its terms 16 pixels: of a pair of elements of two pixels,
// the first ones are a row's and the second ones another's.  The sums stay in registers while a block goes through
// its tiles; those of its warps are added in order, each block's are a part in float32 for each phase.

namespace {

template <typename Z>
struct FirstWeight {
  static constexpr int NB = Z::K / 8;
  static constexpr int DOWN = ceil_of(Z::BLOCKS, Z::MT), BESIDE = ceil_of(NB, Z::NT);
  static constexpr int APART = Z::PHASES * DOWN * BESIDE, SPLITS = Z::WARPS / APART;
  static constexpr int PITCH = odd_of(NB), GRAD = Z::TP * Z::COLUMNS * PITCH * 16;
  static constexpr int STAGE = Z::TILE + GRAD, SUMS = Z::MT * Z::NT * 4;
  static constexpr int ADDED = SPLITS / 2 * APART * SUMS * 128;
  static constexpr int BYTES = Z::STAGES * STAGE > ADDED ? Z::STAGES * STAGE : ADDED;
  static constexpr int RESIDENT =
      resident_of(BYTES, Z::ALLOCATED, 56 + SUMS + 2 * Z::NT + 5 * Z::MT);
  static_assert(Z::WARPS % APART == 0 && (SPLITS & (SPLITS - 1)) == 0 && SPLITS > 0);
};

template <typename Z>
__device__ inline void read_first_gradient(Spot to, const typename Z::T* grad, const FirstTile& at,
                                           int rows, int columns) {
  using W = FirstWeight<Z>;
#pragma unroll 4
  for (int i = threadIdx.x; i < Z::TP * Z::COLUMNS * W::NB; i += Z::THREADS) {
    const int chunk = i % W::NB, pixel = i / W::NB;
    const int row = at.row + pixel / Z::COLUMNS, column = at.column + pixel % Z::COLUMNS;
    const bool there = row < rows && column < columns;
    const int64_t from = ((int64_t{at.plane} * rows + row) * columns + column) * Z::K + chunk * 8;
    copy_16(to + static_cast<Spot>((pixel * W::PITCH + chunk) * 16), there ? grad + from : grad, there);
  }
}

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS, FirstWeight<Z>::RESIDENT)
    first_weight(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                 float* __restrict__ parts, WideCall z, int down, int across, int tiles) {
  using T = typename Z::T;
  using W = FirstWeight<Z>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int rows = static_cast<int>(z.p), columns = static_cast<int>(z.q);
  const int phase = warp % Z::PHASES, block = warp / Z::PHASES % W::DOWN * Z::MT;
  const int filter = warp / (Z::PHASES * W::DOWN) % W::BESIDE * Z::NT, split = warp / W::APART;
  const Spot stage_0 = shared_memory();
  Spot places[Z::MT];
#pragma unroll
  for (int m = 0; m < Z::MT; ++m) places[m] = static_cast<Spot>(Z::place(8 * (block + m) + g));
  float sums[Z::MT][Z::NT][4] = {};
  after_the_one_before();
  auto read = [&](const FirstTile& from, int to) {
    const Spot stage = stage_0 + to * W::STAGE;
    read_rows<Z>(stage, image, from, z);
    read_first_gradient<Z>(stage + Z::TILE, grad, from, rows, columns);
  };
  int turn = 0;
  FirstTile at = first_tile<Z>(blockIdx.x, down, across);
  read(at, 0);
  copies_end();
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int next = tile + static_cast<int>(gridDim.x);
    const FirstTile after = first_tile<Z>(next, down, across);
    if constexpr (Z::STAGES == 2) {
      if (next < tiles) read(after, turn ^ 1);
      copies_end();
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const Spot stage = stage_0 + turn * W::STAGE;
#pragma unroll 1
    for (int unit = 2 * split; unit < Z::UNITS; unit += 2 * W::SPLITS) {
      unsigned b[Z::NT + 1][2];
      const int u = unit + lane / 8 % 2;
      const int pixel = u / Z::TU * Z::COLUMNS + (u % Z::TU * 8 + lane % 8) * Z::PHASES + phase;
      const Spot of_grad = stage + Z::TILE + static_cast<Spot>(pixel * W::PITCH * 16);
#pragma unroll
      for (int n = 0; n < Z::NT; n += 2) {
        int column = filter + (n + 1 < Z::NT ? n + lane / 16 : n);
        if (W::NB % Z::NT != 0) column = min(column, W::NB - 1);
        unsigned four[4];
        matrices_4<true>(four, of_grad + static_cast<Spot>(column * 16));
        b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
      }
      // Where there is no result its gradient is zeros, but what its taps read need not be numbers.
      unsigned keep[2];
      Spot pixels[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = at.row + (unit + i) / Z::TU;
        const int column = at.column + ((unit + i) % Z::TU * 8 + 2 * t4) * Z::PHASES + phase;
        const int left = row < rows ? columns - column : 0;
        keep[i] = left > Z::PHASES ? ~0u : left > 0 ? 0xffffu : 0u;
        pixels[i] = stage + static_cast<Spot>(Z::of_pixel(unit + i, 2 * t4, phase));
      }
#pragma unroll
      for (int m = 0; m < Z::MT; ++m) {
        unsigned a[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const unsigned one = read_4(pixels[i] + places[m]);
          const unsigned two = read_4(pixels[i] + places[m] + Z::PHASES * Z::STEP * 2);
          a[2 * i] = __byte_perm(one, two, 0x5410) & keep[i];
          a[2 * i + 1] = __byte_perm(one, two, 0x7632) & keep[i];
        }
#pragma unroll
        for (int n = 0; n < Z::NT; ++n) multiply_16(sums[m][n], a, b[n][0], b[n][1], T{});
      }
    }
    __syncthreads();
    at = after;
    if constexpr (Z::STAGES == 2) {
      turn ^= 1;
    } else {
      if (next < tiles) read(after, 0);
      copies_end();
    }
  }
  wait_copies<0>();
  // Halves of the warps that have the same sums are added, until one is left.
  auto each = [&](auto&& what) {
#pragma unroll
    for (int i = 0; i < W::SUMS; ++i) what(i, sums[i / 4 / Z::NT][i / 4 % Z::NT][i % 4]);
  };
#pragma unroll 1
  for (int half = W::SPLITS / 2; half > 0; half /= 2) {
    __syncthreads();
    const Spot lines = stage_0 + static_cast<Spot>((warp % (half * W::APART) * W::SUMS * 32 + lane) * 4);
    if (split >= half && split < 2 * half) {
      each([&](int i, float sum) { write_f(lines + i * 128, sum); });
    }
    __syncthreads();
    if (split < half) each([&](int i, float& sum) { sum += read_f(lines + i * 128); });
  }
  if (split > 0) return;
  float* const mine = parts + (int64_t{blockIdx.x} * Z::PHASES + phase) * (Z::K * Z::LINES * Z::SC);
  each([&](int i, float sum) {
    const int m = i / 4 / Z::NT, n = i / 4 % Z::NT;
    const int pair = 8 * (block + m) + g, k = (filter + n) * 8 + t4 * 2 + i % 2, r = pair / Z::PAIRS;
    const int e = pair % Z::PAIRS * 2 + i % 4 / 2 - Z::moved(phase);
    if (r < Z::LINES && e >= 0 && e < Z::SC && k < Z::K) mine[(k * Z::LINES + r) * Z::SC + e] = sum;
  });
}

template <typename T, typename Out, typename After, int... numbers>
int first_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = First<T, numbers...>;
  using W = FirstWeight<Z>;
  const WideCall z = wide_call(call);
  int down = 0, across = 0;
  const int64_t tiles = first_tiles<Z>(z, down, across), count = int64_t{Z::K} * Z::RS * Z::C;
  // Of the problem alone, so that sums are the same on all devices.
  const int64_t each = ceil_of64(tiles, ceil_of64(int64_t{RW_DIRECT_BLOCKS} * W::RESIDENT, 2));
  const int64_t many = ceil_of64(tiles, each), parts = many * Z::PHASES;
  if (call.wanted != nullptr) return *call.wanted = parts * count * 4, 0;
  if (!first_counts(z, tiles)) return finished(cudaErrorInvalidValue);
  cudaError_t error = launch_with(first_weight<Z>, dim3(static_cast<unsigned>(many)), Z::THREADS, W::BYTES,
                                  stream, static_cast<const T*>(z.first), static_cast<const T*>(z.second),
                                  static_cast<float*>(z.workspace), z, down, across,
                                  static_cast<int>(tiles));
  if (error == cudaSuccess) error = sum_parts<Out>(z, count, static_cast<int>(parts), stream);
  return finished(error);
}

}  // namespace
