// ---- dense convolutions of few channels: the gradient of the filters --------------------------------------
//
// A product's rows are 16 filters, its columns 8 channels, its terms 16 pixels of a row.  A warp has 16
// filters and some times 8 channels of the gradient for all taps in registers, through all tiles of its
// block: a row of the result's gradient is loaded once for all of them, and a row of the image once for R of
// them.  Where that leaves warps, several have the same of other rows of a tile, and their sums are added.

namespace {

template <typename Z>
struct NarrowWeight {
  static constexpr int PIECES = Z::K / 8, HALVES = ceil_of(Z::K, 16);
  static constexpr int BLOCKS = Z::C / 8 / Z::WAYS;  // of 8 channels, a warp's
  static constexpr int APART = Z::WARPS / (HALVES * Z::WAYS), HIGH = Z::TP / APART;
  static constexpr int IMAGE = Z::ROWS * Z::COLUMNS * kPixelOf<Z::C>;
  static constexpr int STAGE = IMAGE + Z::TP * Z::TQ * kPixelOf<Z::K>;
  // Of products: a block of channels and a tap across; two are loaded at a time.
  static constexpr int LINES = BLOCKS * Z::S, PAIRS = ceil_of(LINES, 2);
  static constexpr int SUMS = LINES * Z::R * 4, ADDED = APART > 1 ? Z::THREADS / APART * SUMS * 4 : 0;
  static constexpr int BYTES = 2 * STAGE > ADDED ? 2 * STAGE : ADDED;
  static constexpr int RESIDENT = resident_of(BYTES, Z::THREADS, SUMS + Z::R * 4 + 40);
  static_assert(Z::C / 8 % Z::WAYS == 0 && Z::WARPS % (HALVES * Z::WAYS) == 0 && Z::TP % APART == 0);
};

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS, NarrowWeight<Z>::RESIDENT)
    narrow_weight(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                  float* __restrict__ parts, int height, int width, Tiled made) {
  using T = typename Z::T;
  using W = NarrowWeight<Z>;
  constexpr int pixel = kPixelOf<Z::C>, grad_pixel = kPixelOf<Z::K>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int half = warp % W::HALVES, way = warp / W::HALVES % Z::WAYS, apart = warp / (W::HALVES * Z::WAYS);
  const Spot stages = shared_memory();
  // Of the pixel and the piece of filters, or of channels, that this lane tells the place of.
  const int piece = half * 2 + lane / 8 % 2;
  const Spot of_grad = static_cast<Spot>((apart * W::HIGH * Z::TQ + lane / 16 * 8 + lane % 8) * grad_pixel +
                                         (piece < W::PIECES ? piece : 0) * 16);
  Spot of_image[W::PAIRS];
#pragma unroll
  for (int i = 0; i < W::PAIRS; ++i) {
    const int line = 2 * i + 1 < W::LINES ? 2 * i + lane / 16 : 2 * i;
    of_image[i] = static_cast<Spot>((apart * W::HIGH * Z::COLUMNS + lane % 16 + line % Z::S) * pixel +
                                    (way * W::BLOCKS + line / Z::S) * 16);
  }
  float sums[W::LINES][Z::R][4] = {};
  after_the_one_before();
  auto read = [&](int tile, int turn) {
    const TilePlace at = tile_place<Z>(tile, made);
    const Spot stage = stages + static_cast<Spot>(turn * W::STAGE);
    read_rows<Z::ROWS, Z::COLUMNS, Z::C, Z::THREADS>(stage, image, at.n, height, width, at.row - Z::PH,
                                                     at.column - Z::PW);
    read_rows<Z::TP, Z::TQ, Z::K, Z::THREADS>(stage + W::IMAGE, grad, at.n, made.height, made.width, at.row,
                                              at.column);
  };
  read(blockIdx.x, 0);
  copies_end();
  through_tiles<Z>(made, read, [&](const TilePlace& at, int turn) {
    const int high = made.height - at.row - apart * W::HIGH;  // rows that there are
    if (high <= 0) return;
    const Spot pixels = stages + static_cast<Spot>(turn * W::STAGE), grads = pixels + W::IMAGE + of_grad;
#pragma unroll 1
    for (int q = 0; q < Z::TQ; q += 16) {
      // Where there is no result its gradient is zeros, but what its taps read need not be numbers.
      const int left = made.width - at.column - q;
      if (left <= 0) break;
      unsigned keep[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int mine = left - i * 8 - lane % 4 * 2;
        keep[i] = mine >= 2 ? ~0u : mine == 1 ? 0xffffu : 0u;
      }
      unsigned a[Z::R][4];
#pragma unroll
      for (int h = 0; h < W::HIGH + Z::R - 1; ++h) {
        if (h < W::HIGH) {
          matrices_4<true>(a[h % Z::R], grads + static_cast<Spot>((h * Z::TQ + q) * grad_pixel));
        }
#pragma unroll
        for (int i = 0; i < W::PAIRS; ++i) {
          unsigned b[4];
          matrices_4<true>(b, pixels + of_image[i] + static_cast<Spot>((h * Z::COLUMNS + q) * pixel));
          b[0] &= keep[0], b[1] &= keep[1], b[2] &= keep[0], b[3] &= keep[1];
#pragma unroll
          for (int r = 0; r < Z::R; ++r) {
            if (h - r < 0 || h - r >= W::HIGH || h - r >= high) continue;
            multiply_16(sums[2 * i][r], a[(h - r) % Z::R], b[0], b[1], T{});
            if (2 * i + 1 < W::LINES) multiply_16(sums[2 * i + 1][r], a[(h - r) % Z::R], b[2], b[3], T{});
          }
        }
      }
    }
  });
  // One after another, so that the order is always the same; four sums at a time.
#pragma unroll 1
  for (int other = 1; other < W::APART; ++other) {
    __syncthreads();
    const Spot mine = stages + static_cast<Spot>(warp % (Z::WARPS / W::APART) * W::SUMS * 128 + lane * 16);
    if (apart == other) {
#pragma unroll
      for (int i = 0; i < W::SUMS / 4; ++i) {
        uint4 bits;
        memcpy(&bits, sums[i / Z::R][i % Z::R], sizeof(bits));
        write_16(mine + static_cast<Spot>(i * 512), bits);
      }
    }
    __syncthreads();
    if (apart > 0) continue;
#pragma unroll
    for (int i = 0; i < W::SUMS / 4; i += Z::R) {
      float4 more[Z::R];  // on their way together
#pragma unroll
      for (int r = 0; r < Z::R; ++r) {
        const uint4 bits = read_16(mine + static_cast<Spot>((i + r) * 512));
        memcpy(&more[r], &bits, sizeof(bits));
      }
#pragma unroll
      for (int r = 0; r < Z::R; ++r) {
        float(&sum)[4] = sums[i / Z::R][r];
        sum[0] += more[r].x, sum[1] += more[r].y, sum[2] += more[r].z, sum[3] += more[r].w;
      }
    }
  }
  if (apart > 0) return;
  float* const mine = parts + blockIdx.x * int64_t{Z::K * Z::RS * Z::C};
#pragma unroll
  for (int line = 0; line < W::LINES; ++line) {
#pragma unroll
    for (int r = 0; r < Z::R; ++r) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int k = half * 16 + i / 2 * 8 + lane / 4;
        const int c = (way * W::BLOCKS + line / Z::S) * 8 + lane % 4 * 2;
        if (k < Z::K) {
          *reinterpret_cast<float2*>(mine + (k * Z::RS + r * Z::S + line % Z::S) * Z::C + c) =
              make_float2(sums[line][r][i], sums[line][r][i + 1]);
        }
      }
    }
  }
}

template <typename T, typename Out, typename After, int... numbers>
int narrow_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Narrow<T, numbers...>;
  using W = NarrowWeight<Z>;
  const WideCall z = wide_call(call);
  const Tiled made = tiled<Z>(z.n, z.p, z.q);
  if (made.tiles < 0) return finished(cudaErrorInvalidValue);
  // Of the problem alone, so that sums are the same on all devices; no more than the tensors are.
  const int64_t count = int64_t{Z::K} * Z::RS * Z::C;
  const int64_t tensors = 2 * z.n * (z.h * z.w * z.c + z.p * z.q * z.k), most = tensors / (4 * count) + 1;
  int64_t parts = RW_DIRECT_BLOCKS / 2 * W::RESIDENT;
  if (parts > most) parts = most;
  if (parts > made.tiles) parts = made.tiles;
  if (call.wanted != nullptr) return *call.wanted = parts * count * 4, 0;
  const dim3 grid(static_cast<unsigned>(parts));
  cudaError_t error = launch_with(narrow_weight<Z>, grid, Z::THREADS, W::BYTES, stream,
                                  static_cast<const T*>(z.first), static_cast<const T*>(z.second),
                                  static_cast<float*>(z.workspace), call.h, call.w, made);
  if (error == cudaSuccess) error = sum_parts<Out>(z, count, static_cast<int>(parts), stream);
  return finished(error);
}

}  // namespace
