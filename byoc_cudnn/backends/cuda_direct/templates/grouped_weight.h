// ---- grouped convolutions on tensor cores: the gradient of the filters --------------------------------------
//
// A product's rows are 16 of a group's taps and channels, its columns 8 of its filters, its terms 16
// pixels.  The sums stay in registers while a block goes through its tiles; each block's are a part in
// float32, and the parts are added in order.

namespace {

template <typename Z>
struct Weight {
  using X = Tile<Z, false>;
  static constexpr int CHUNKS = Z::RS * Z::CI / 8, NB = Z::KI / 8;
  static constexpr int APART = Z::WARPS / Z::GB;  // warps of a group
  static constexpr int MW = ceil_of(ceil_of(CHUNKS, 2), APART);  // a warp's, times 16 rows
  static constexpr int GRAD_CHUNKS = Z::GB * Z::KI / 8, GRAD_PITCH = odd_of(GRAD_CHUNKS);
  static constexpr int GRAD_BYTES = Z::UNITS * 8 * GRAD_PITCH * 16;
  static constexpr int STAGE = X::BYTES + GRAD_BYTES, BYTES = Z::STAGES * STAGE;
  static_assert(Z::WARPS % Z::GB == 0 && Z::UNITS % 2 == 0);
};

template <typename Z>
__device__ inline void read_gradient(Spot to, const typename Z::T* grad, const Where& at,
                                     const WideCall& z, int channel) {
  using W = Weight<Z>;
  for (int i = threadIdx.x; i < Z::UNITS * 8 * W::GRAD_CHUNKS; i += Z::THREADS) {
    const int chunk = i % W::GRAD_CHUNKS, pixel = i / W::GRAD_CHUNKS, u = pixel / 8;
    const int64_t n = at.n + u / (Z::TP * Z::TU), p = at.row + u / Z::TU % Z::TP;
    const int64_t q = at.column + u % Z::TU * 8 + pixel % 8;
    const int k = channel + chunk * 8;
    const bool there = n < z.n && p < z.p && q < z.q && k < z.k;
    copy_16(to + static_cast<Spot>((pixel * W::GRAD_PITCH + chunk) * 16),
            there ? grad + ((n * z.p + p) * z.q + q) * z.k + k : grad, there);
  }
}

// Of the pixels that this lane multiplies, two of each of two units, which there are: all bits of those.
// Whether some of the units' are not.
template <typename Z>
__device__ inline bool rests_of(unsigned (&keep)[2], int unit, const Where& at, const WideCall& z) {
  bool some = false;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int u = unit + i, column = at.column + u % Z::TU * 8;
    const bool there = at.n + u / (Z::TP * Z::TU) < z.n && at.row + u / Z::TU % Z::TP < z.p;
    const int left = there ? static_cast<int>(z.q) - column : 0;  // pixels of the unit
    const int mine = left - static_cast<int>(threadIdx.x) % 4 * 2;
    keep[i] = mine >= 2 ? ~0u : mine == 1 ? 0xffffu : 0u;
    some = some || left < 8;
  }
  return some;
}

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS)
    grouped_weight(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                   float* __restrict__ parts, WideCall z, int down, int across, int tiles) {
  using W = Weight<Z>;
  using X = typename W::X;
  constexpr int each = Z::CI / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slab = blockIdx.x;
  const int group = warp / W::APART, part = warp % W::APART;
  const Spot stage_0 = shared_memory();
  Spot places[W::MW];  // of this lane's rows, beside tap (0, 0)
#pragma unroll
  for (int m = 0; m < W::MW; ++m) {
    const int mine = 2 * (part * W::MW + m) + lane / 8 % 2, chunk = mine < W::CHUNKS ? mine : 0;
    const int tap = chunk / each, place = X::of_tap(tap / Z::S * Z::DI, tap % Z::S * Z::DI);
    places[m] = static_cast<Spot>((place * X::PITCH + group * each + chunk % each) * 16);
  }
  float sums[W::MW][W::NB][4] = {};
  after_the_one_before();
  auto read = [&](int tile, int to) {
    const Where at = where_of<Z>(tile, down, across);
    const Spot stage = stage_0 + to * W::STAGE;
    read_tile<Z, false>(stage, image, at, z.n, static_cast<int>(z.h), static_cast<int>(z.w),
                        static_cast<int>(z.c), slab * Z::GB * Z::CI);
    read_gradient<Z>(stage + X::BYTES, grad, at, z, slab * Z::GB * Z::KI);
  };
  int turn = 0;
  read(blockIdx.y, 0);
  copies_end();
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int next = tile + static_cast<int>(gridDim.y);
    if constexpr (Z::STAGES == 2) {
      if (next < tiles) read(next, turn ^ 1);
      copies_end();
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const Where at = where_of<Z>(tile, down, across);
    const Spot pixels = stage_0 + turn * W::STAGE;
    const Spot filters = pixels + X::BYTES +
                         static_cast<Spot>((lane % 8 * W::GRAD_PITCH + group * W::NB) * 16);
#pragma unroll 2
    for (int unit = 0; unit < Z::UNITS; unit += 2) {
      unsigned b[W::NB + 1][2];
#pragma unroll
      for (int n = 0; n < W::NB; n += 2) {
        const int column = n + 1 < W::NB ? n + lane / 16 : n;
        unsigned four[4];
        matrices_4<true>(four, filters + static_cast<Spot>(((unit + lane / 8 % 2) * 8 * W::GRAD_PITCH +
                                                            column) * 16));
        b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
      }
      const Spot mine = pixels +
                        static_cast<Spot>((X::of_unit(unit + lane / 16) + lane % 8) * X::PITCH * 16);
      // Where there is no result its gradient is zeros, but what its taps read need not be numbers.
      unsigned keep[2];
      const bool some = rests_of<Z>(keep, unit, at, z);
      auto multiply = [&](bool all) {
#pragma unroll
        for (int m = 0; m < W::MW; ++m) {
          unsigned a[4];
          matrices_4<true>(a, mine + places[m]);
          if (!all) a[0] &= keep[0], a[1] &= keep[0], a[2] &= keep[1], a[3] &= keep[1];
#pragma unroll
          for (int n = 0; n < W::NB; ++n) {
            multiply_16(sums[m][n], a, b[n][0], b[n][1], typename Z::T{});
          }
        }
      };
      if (some) {
        multiply(false);
      } else {
        multiply(true);
      }
    }
    __syncthreads();
    if constexpr (Z::STAGES == 2) {
      turn ^= 1;
    } else {
      if (next < tiles) read(next, 0);
      copies_end();
    }
  }
  float* const mine = parts + int64_t{blockIdx.y} * z.k * Z::RS * Z::CG;
#pragma unroll
  for (int m = 0; m < W::MW; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = 2 * (part * W::MW + m) + i / 2;
      const int tap = chunk / each, c = chunk % each * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < W::NB; ++n) {
        const int filter = n * 8 + lane % 4 * 2 + i % 2;
        const int64_t k = int64_t{slab * Z::GB + group} * Z::KI + filter;
        if (chunk < W::CHUNKS && k < z.k && filter / Z::KG == c / Z::CG) {
          mine[(k * Z::RS + tap) * Z::CG + c % Z::CG] = sums[m][n][i];
        }
      }
    }
  }
}

// How many parts a gradient is the sum of: of the problem alone, so that sums are the same on all devices.
template <typename Z>
inline int64_t parts_of(const WideCall& z) {
  const int64_t tiles = ceil_of64(z.n, Z::TN) * ceil_of64(z.p, Z::TP) * ceil_of64(z.q, 8 * Z::TU);
  const int64_t slabs = ceil_of64(z.k, Z::GB * Z::KI);
  // As long as the parts are not more than the tensors are.
  const int64_t tensors = 2 * z.n * (z.h * z.w * z.c + z.p * z.q * z.k);
  const int64_t most = tensors / (4 * z.k * Z::RS * Z::CG) + 1;
  int64_t many = ceil_of64(RW_DIRECT_BLOCKS, slabs);
  if (many > most) many = most;
  if (many > tiles) many = tiles;
  return ceil_of64(tiles, ceil_of64(tiles, many));
}

template <typename T, typename Out, typename After, int... numbers>
int grouped_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Shape<T, numbers...>;
  using W = Weight<Z>;
  const WideCall z = wide_call(call);
  const int64_t many = parts_of<Z>(z), count = z.k * Z::RS * Z::CG;
  if (call.wanted != nullptr) return *call.wanted = many * count * 4, 0;
  const int down = static_cast<int>(ceil_of64(z.p, Z::TP));
  const int across = static_cast<int>(ceil_of64(z.q, 8 * Z::TU));
  const int64_t tiles = ceil_of64(z.n, Z::TN) * down * across;
  if (tiles > kMostTiles) return finished(cudaErrorInvalidValue);
  const auto slabs = static_cast<unsigned>(ceil_of64(z.k, Z::GB * Z::KI));
  cudaError_t error = launch_with(
      grouped_weight<Z>, dim3(slabs, static_cast<unsigned>(many)), Z::THREADS, W::BYTES, stream,
      static_cast<const T*>(z.first), static_cast<const T*>(z.second),
      static_cast<float*>(z.workspace), z, down, across, static_cast<int>(tiles));
  if (error == cudaSuccess) error = sum_parts<Out>(z, count, static_cast<int>(many), stream);
  return finished(error);
}

}  // namespace
