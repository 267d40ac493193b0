// ---- depthwise on tensor cores, stride 1, in equal shares: what the image's and the filters' kernels share --
//
// As `bands_rows.h` says, but: channels lie by four in shared memory, so that what a warp reads meets all
// banks; rows that are not there are neither copied nor multiplied; and the rows of all items one below the
// other, tile after tile, are cut into as many equal shares as blocks run at once.

namespace {

template <typename T_, int CB_, int R_, int S_, int TOP, int LEFT, int J_, int I_, int D_, int F_>
struct Shares {
  using T = T_;
  static constexpr int CB = CB_, R = R_, S = S_, RS = R * S, J = J_, I = I_, D = D_;
  static constexpr int F = F_;  // blocks that run at once on a multiprocessor
  static constexpr int ST = 1, DI = 1, PH = TOP, PW = LEFT;  // as `alone` and `bands_of` have them
  static constexpr int FOURS = (6 + S) / 4 + 1;
  static constexpr int WARPS = CB / 4, THREADS = 32 * WARPS, CHUNKS = CB / 8, ITEMS = I * J;
  // Columns of an item's image that are read, and those that products have.
  static constexpr int WIDE = 8 * (J - 1) + 7 + S, ALL = 8 * (J - 1) + 4 * FOURS;
  // Bytes of eight columns of four channels, of an image's row of them, and of all images'.  A quarter of
  // the banks is left out after eight columns: four items one after another meet all of them.  Threads
  // that copy a pixel write to channels beside each other: to different banks.
  static constexpr int SPAN = 96, IMAGE = (J + 1) * SPAN + 32, GRAD_IMAGE = J * SPAN;
  static constexpr int BESIDE = WARPS > 4 ? 16 : WARPS > 2 ? 32 : 64;
  static constexpr int group_of(int bytes) { return bytes + (BESIDE + 128 - bytes % 128) % 128; }
  static constexpr int GROUP = group_of(I * IMAGE), GRAD_GROUP = group_of(I * GRAD_IMAGE);
  static constexpr int ROW = WARPS * GROUP, STAGE = ROW + WARPS * GRAD_GROUP;
  static constexpr int FILTER_BYTES = CB * RS * 2, GATE_BYTES = 16;
  static constexpr int PITCH = odd_of(CHUNKS) * 16, ITEM = 8 * PITCH + 16, OUT_BYTES = 16 * ITEM;
  static constexpr int BYTES = FILTER_BYTES + D * ROW + 2 * OUT_BYTES + GATE_BYTES;
  static constexpr int SUM_BYTES = WARPS * 2048;
  static constexpr int RING_BYTES = D * STAGE > SUM_BYTES ? D * STAGE : SUM_BYTES;
  static constexpr int WEIGHT_BYTES = RING_BYTES + GATE_BYTES;
  static_assert(CB % 8 == 0 && ITEMS <= 16 && D >= 2);

  static __device__ inline int at(int image, int column, int bytes) {
    return image * bytes + column / 8 * SPAN + column % 8 * 8;
  }
};

// Rows of results that follow each other in a tile, of I images from one on and 8 * J columns: the next of a
// share's, of which `left` rows are still to come.
template <typename Z>
struct Part {
  int left, row, rows, column, image;

  __device__ inline Part(int begin, int end, int all, int across) : left(end - begin) {
    const int tile = begin / all, above = tile / across;
    row = begin - tile * all, column = (tile - above * across) * 8 * Z::J, image = above * Z::I;
    rows = min(all - row, left);
  }

  __device__ inline void next(int all, int columns) {
    left -= rows, row = 0, rows = min(all, left), column += 8 * Z::J;
    if (column >= columns) column = 0, image += Z::I;
  }
};

// What a thread copies of each row: of I images `kWide` columns from one on, by four channels.
template <typename Z, int kWide, int kImage, int kGroup>
struct Fours {
  using T = typename Z::T;
  static constexpr int kAll = Z::I * kWide * Z::WARPS, kCount = ceil_of(kAll, Z::THREADS);

  const T* at = nullptr;  // the next row
  unsigned from[kCount], there = 0;
  Spot to[kCount];

  static __device__ inline int pixel(int k) { return static_cast<int>(threadIdx.x) / Z::WARPS + k * 32; }

  __device__ inline Fours(Spot ring, int height, int width, int channels) {
    const int part = static_cast<int>(threadIdx.x) % Z::WARPS;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int i = pixel(k) / kWide, beside = pixel(k) % kWide;
      to[k] = ring + static_cast<Spot>(part * kGroup + Z::at(i, beside, kImage));
      from[k] = (static_cast<unsigned>(i) * height * width + beside) * channels + part * 4;
    }
  }

  // `column`: of the image's.
  __device__ inline void begin(const T* in, int64_t image, int first, int row, int column, int64_t images,
                               int height, int width, int channels) {
    at = in + ((image * height + row) * width + column) * channels + first;
    const bool mine = first + static_cast<int>(threadIdx.x) % Z::WARPS * 4 < channels;
    there = 0;
#pragma unroll 1  // it is in a loop that is unrolled, and seldom needed
    for (int k = 0; k < kCount; ++k) {
      const int i = pixel(k) / kWide, w = column + pixel(k) % kWide;
      const bool is = mine && i < Z::I && image + i < images && w >= 0 && w < width;
      there |= (is ? 8u : 0u) << k;
    }
  }

  // The next row, or zeros.
  __device__ inline void ask(Spot stage, bool is) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k < kCount - 1 || kAll % Z::THREADS == 0 || pixel(k) < Z::I * kWide) {
        copy_8(to[k] + stage, beyond(at, from[k]), is ? there >> k & 8u : 0u);
      }
    }
  }
};

// Puts zeros where nothing is copied to, and what only zeros of a band meet is read.
template <typename Z>
__device__ inline void no_fours(Spot ring) {
  constexpr int spare = Z::ALL - Z::WIDE;
  if constexpr (spare > 0) {
    for (int i = threadIdx.x; i < Z::D * Z::I * spare * Z::WARPS; i += Z::THREADS) {
      const int column = Z::WIDE + i / Z::WARPS % spare, image = i / (Z::WARPS * spare);
      write_8(ring + static_cast<Spot>(image / Z::I * Z::ROW + i % Z::WARPS * Z::GROUP +
                                       Z::at(image % Z::I, column, Z::IMAGE)),
              uint2{0, 0});
    }
  }
}

// How many rows a share has: all rows of some tiles, or fewer with `ramp` rows more that others read too;
// `light` are rows of a tile that take half as long.  Of the problem and not of the GPU that is here.
inline int share_of(int64_t tiles, int rows, int slabs, int fit, int ramp, int light) {
  const int64_t most = kAtOnce * fit > slabs ? kAtOnce * fit / slabs : 1;
  const int64_t whole = ceil_of64(tiles, most), part = ceil_of64(tiles * rows, most);
  const int64_t one = 2 * whole * rows + whole * light;
  const int64_t other = 2 * (part + ramp) + part / rows * light;
  return static_cast<int>(one <= other ? whole * rows : part);
}

// Whether places in a tile and in all tiles' rows can be counted.
template <typename Z>
inline bool countable(const WideCall& z, int64_t tiles, int64_t rows) {
  const int64_t image = z.h * z.w, result = z.p * z.q, pixels = image > result ? image : result;
  return tiles * rows < int64_t{1} << 30 && Z::I * pixels * z.c < int64_t{1} << 31;
}

}  // namespace
