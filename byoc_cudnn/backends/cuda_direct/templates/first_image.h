// ---- first layers on tensor cores: the result ---------------------------------------------------------------
//
// A block keeps the filters and goes through tiles, the next of which is copied meanwhile.  A product's rows are
// 16 pixels.  Its columns are filters in an order by which a lane's sums of four products are 8 filters beside
// each other: they go from registers to memory.

namespace {

template <typename Z>
struct FirstImage {
  static constexpr int GROUPS = ceil_of(Z::K, 32), FILTERS = 32 * GROUPS;
  static constexpr int PITCH = 2 * Z::BLOCKS + 1;  // of a filter, times 16 bytes
  static constexpr int PHASE = FILTERS * PITCH * 16, FILTER_BYTES = Z::PHASES * PHASE;
  static constexpr int BYTES = FILTER_BYTES + Z::STAGES * Z::TILE;
  static constexpr int RESIDENT = resident_of(BYTES, Z::ALLOCATED, 48 + Z::MT * (Z::NT * 16 + 8));
  static_assert(GROUPS % Z::NT == 0);

  // The filter of a row of the filters in shared memory.
  static constexpr int filter(int row) {
    return row / 32 * 32 + row % 8 / 2 * 8 + row / 8 % 4 * 2 + row % 2;
  }
};

template <typename Z>
__device__ inline void read_first_filters(Spot to, const typename Z::T* weight) {
  using I = FirstImage<Z>;
  constexpr int terms = 16 * Z::BLOCKS;
  const auto* const bits = reinterpret_cast<const unsigned short*>(weight);
#pragma unroll 4
  for (int i = threadIdx.x; i < Z::PHASES * I::FILTERS * terms; i += Z::THREADS) {
    const int term = i % terms, line = i / terms, phase = line / I::FILTERS;
    const int filter = I::filter(line % I::FILTERS), pair = term / 2, r = pair / Z::PAIRS;
    const int e = pair % Z::PAIRS * 2 + term % 2 - Z::moved(phase);
    const bool there = filter < Z::K && r < Z::LINES && e >= 0 && e < Z::SC;
    write_2(to + static_cast<Spot>(line * I::PITCH * 16 + term * 2),
            there ? __ldg(bits + (filter * Z::LINES + r) * Z::SC + e) : static_cast<unsigned short>(0));
  }
}

template <typename Z, typename After>
__global__ void __launch_bounds__(Z::THREADS, FirstImage<Z>::RESIDENT)
    first_image(const typename Z::T* __restrict__ image, const typename Z::T* __restrict__ weight,
                typename Z::T* __restrict__ out, WideCall z, int down, int across, int tiles) {
  using T = typename Z::T;
  using I = FirstImage<Z>;
  constexpr int items = ceil_of(Z::UNITS, 2 * Z::MT) * Z::PHASES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int rows = static_cast<int>(z.p), columns = static_cast<int>(z.q);
  const Spot filters = shared_memory(), tile_0 = filters + I::FILTER_BYTES;
  const auto* const source = static_cast<const T*>(z.source);
  after_the_one_before();
  auto read = [&](const FirstTile& from, int to) {
    read_rows<Z>(tile_0 + to * Z::TILE, image, from, z);
  };
  int turn = 0;
  FirstTile at = first_tile<Z>(blockIdx.x, down, across);
  read(at, 0);
  copies_end();
  read_first_filters<Z>(filters, weight);
  const Spot mine = filters + static_cast<Spot>(((lane / 16 * 8 + lane % 8) * I::PITCH + lane / 8 % 2) * 16);
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
    const int64_t first = ((int64_t{at.plane} * rows + at.row) * columns + at.column) * Z::K;
#pragma unroll 1
    for (int item = warp; item < items; item += Z::WARPS) {
      const int phase = item % Z::PHASES, unit = item / Z::PHASES * 2 * Z::MT;
      bool some = false;  // is NaN
      Spot pixels[Z::MT][2];
#pragma unroll
      for (int m = 0; m < Z::MT; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int u = unit + 2 * m + half, known = u < Z::UNITS ? u : Z::UNITS - 1;
          pixels[m][half] = tile_0 + turn * Z::TILE + t4 * 4 +
                            static_cast<Spot>(Z::of_pixel(known, g, phase));
        }
      }
#pragma unroll 1
      for (int group = 0; group < I::GROUPS; group += Z::NT) {
        const Spot columns_at = mine + static_cast<Spot>(phase * I::PHASE + group * 32 * I::PITCH * 16);
        float sums[Z::MT][Z::NT * 4][4] = {};
#pragma unroll
        for (int block = 0; block < Z::BLOCKS; ++block) {
          unsigned a[Z::MT][4];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int p = 8 * block + 4 * half;
            const int d[4] = {Z::place(p), Z::place(p + 1) - 4, Z::place(p + 2) - 8, Z::place(p + 3) - 12};
            const int beside = t4 < 1 ? d[0] : t4 < 2 ? d[1] : t4 < 3 ? d[2] : d[3];
#pragma unroll
            for (int m = 0; m < Z::MT; ++m) {
              a[m][2 * half] = read_4(pixels[m][0] + beside);
              a[m][2 * half + 1] = read_4(pixels[m][1] + beside);
            }
          }
#pragma unroll
          for (int n = 0; n < Z::NT * 4; n += 2) {
            unsigned b[4];
            matrices_4<false>(b, columns_at + static_cast<Spot>((n * 8 * I::PITCH + 2 * block) * 16));
#pragma unroll
            for (int m = 0; m < Z::MT; ++m) {
              multiply_16(sums[m][n], a[m], b[0], b[1], T{});
              multiply_16(sums[m][n + 1], a[m], b[2], b[3], T{});
            }
          }
        }
        uint4 operands[Z::NT] = {};
        if constexpr (After::kPerChannel) {
#pragma unroll
          for (int j = 0; j < Z::NT; ++j) {
            const int channel = (group + j) * 32 + t4 * 8;
            if (Z::K % 32 == 0 || channel < Z::K) operands[j] = global_16(source + channel);
          }
        }
#pragma unroll
        for (int m = 0; m < Z::MT; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int u = unit + 2 * m + half, row = u / Z::TU;
            const int column = (u % Z::TU * 8 + g) * Z::PHASES + phase;
            const bool known = Z::UNITS % (2 * Z::MT) == 0 || u < Z::UNITS;
            const bool there = known && row < rows - at.row && column < columns - at.column;
            const int64_t to = first + int64_t{row * columns + column} * Z::K + group * 32 + t4 * 8;
#pragma unroll
            for (int j = 0; j < Z::NT; ++j) {
              const bool kept = there && (Z::K % 32 == 0 || (group + j) * 32 + t4 * 8 < Z::K);
              uint4 operand = operands[j];
              if constexpr (After::kWhole) {
                if (kept) operand = global_16(source + to + j * 32);
              }
              const unsigned with[4] = {operand.x, operand.y, operand.z, operand.w};
              unsigned eight[4];
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                float2 beside = make_float2(0, 0);
                if constexpr (After::kReads) beside = both_of<T>(with[i]);
                const float(&two)[4] = sums[m][j * 4 + i];
                eight[i] = two_of<T>(After::of(two[2 * half], beside.x),
                                     After::of(two[2 * half + 1], beside.y));
              }
              const uint4 all = {eight[0], eight[1], eight[2], eight[3]};
              if (kept) *reinterpret_cast<uint4*>(out + to + j * 32) = all;
              // Of results that are not kept too: a branch would take longer.
              if constexpr (!Z::EXACT) some |= has_nan<T>(all);
            }
          }
        }
      }
      if (Z::EXACT || !some) continue;
      // Zeros that were multiplied with no number: see `mend`.
#pragma unroll 1
      for (int i = 0; i < I::GROUPS * 2 * Z::MT; ++i) {
        const int u = unit + i % (2 * Z::MT), row = at.row + u / Z::TU;
        const int column = at.column + (u % Z::TU * 8 + g) * Z::PHASES + phase;
        const int channel = i / (2 * Z::MT) * 32 + t4 * 8;
        if (u >= Z::UNITS || row >= rows || column >= columns || channel >= Z::K) continue;
        const int64_t to = ((int64_t{at.plane} * rows + row) * columns + column) * Z::K + channel;
        mend<Z, After, false>(out, to, image, weight, z, Z::C, Z::K, at.plane, row, column, channel);
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
}

template <typename T, typename Out, typename After, int... numbers>
int first_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  using Z = First<T, numbers...>;
  using I = FirstImage<Z>;
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  const WideCall z = wide_call(call);
  int down = 0, across = 0;
  const int64_t tiles = first_tiles<Z>(z, down, across);
  if (!first_counts(z, tiles)) return finished(cudaErrorInvalidValue);
  const int64_t each = ceil_of64(tiles, int64_t{multiprocessors()} * I::RESIDENT);
  return finished(launch_with(first_image<Z, After>, dim3(static_cast<unsigned>(ceil_of64(tiles, each))),
                              Z::THREADS, I::BYTES, stream, static_cast<const T*>(z.first),
                              static_cast<const T*>(z.second), static_cast<T*>(z.out), z, down, across,
                              static_cast<int>(tiles)));
}

}  // namespace
