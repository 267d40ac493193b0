// ---- depthwise on tensor cores, stride 1: what the image's and the filters' kernels share ------------------
//
// Of a channel and a row of its filter, 8 results beside each other are a product of 16 columns of the
// image with a banded matrix of the taps.  A block goes down the rows of up to 16 items, each such 8
// columns of results of some image, and CB channels, of which a warp has 4.  Rows come D ahead.

namespace {

template <typename T_, int CB_, int R_, int S_, int ST_, int TOP, int LEFT, int J_, int I_, int D_, int F_>
struct Bands {
  using T = T_;
  static constexpr int CB = CB_, R = R_, S = S_, RS = R * S, J = J_, I = I_, D = D_;
  static constexpr int F = F_;  // blocks that run at once on a multiprocessor
  static constexpr int ST = ST_, DI = 1, PH = TOP, PW = LEFT;  // as `alone` has them
  static constexpr int A = ceil_of(R, ST);  // rows of results that a row of the image reaches
  static constexpr int WARPS = CB / 4, THREADS = 32 * WARPS, CHUNKS = CB / 8;
  // Columns of an item, those that are read of an image's row, those that its products have; with
  // a stride columns are multiplied apart by their rest, of each as many times four as taps reach.
  static constexpr int SPAN = 8 * ST, WIDE = SPAN * (J - 1) + 7 * ST + S;
  static constexpr int FOURS = (6 + ceil_of(S, ST)) / 4 + 1, ALL = SPAN * (J - 1) + 4 * ST * FOURS;
  // Bytes of a pixel, of an item's columns, and of an image's row: so that the lanes that read 8 bytes
  // at once read all banks.
  static constexpr int PITCH = odd_of(CHUNKS) * 16, SPAN_BYTES = SPAN * PITCH + (ST == 1 ? 64 : 16);
  static constexpr int IMAGE = (J + 1) * SPAN_BYTES + (ST == 1 && J % 2 != 0 ? 64 : 0), ROW = I * IMAGE;
  static constexpr int FILTER_BYTES = CB * RS * 2;
  static constexpr int ITEM = 8 * PITCH + 16, OUT_BYTES = 16 * ITEM;  // of results
  static constexpr int GATE_BYTES = 16;
  static constexpr int BYTES = FILTER_BYTES + D * ST * ROW + 2 * OUT_BYTES + GATE_BYTES;
  // Of a gradient's rows beside the image's, for the filters.
  static constexpr int GRAD_IMAGE = J * SPAN_BYTES + (J % 2 != 0 ? 0 : 64), GRAD_ROW = I * GRAD_IMAGE;
  static constexpr int SUM_BYTES = WARPS * 2048;
  static constexpr int STAGE = ROW + GRAD_ROW;
  static constexpr int RING_BYTES = D * STAGE > SUM_BYTES ? D * STAGE : SUM_BYTES;
  static constexpr int WEIGHT_BYTES = RING_BYTES + GATE_BYTES;
  static_assert(CB % 8 == 0 && I * J <= 16 && FOURS <= 4 && ST <= 2 && D >= 1 + ST);

  // Of a pixel in a row.
  template <int kImage>
  static __device__ inline int at(int image, int column) {
    return image * kImage + column / SPAN * SPAN_BYTES + column % SPAN * PITCH;
  }
};

// What a block reads or writes: channels from `first` on, and results from an image's row and column on.
struct Place {
  int first, column, row;
  int64_t image;

  template <typename Z>
  static __device__ inline Place of(int slabs, int across, int down, int chunk) {
    const unsigned tile = blockIdx.x / slabs, above = tile / across;
    return {static_cast<int>(blockIdx.x - tile * slabs) * Z::CB,
            static_cast<int>(tile - above * across) * 8 * Z::J, static_cast<int>(above % down) * chunk,
            int64_t{above / down} * Z::I};
  }
};

// What a thread copies of each row: of I images `kWide` columns from one on.
template <typename Z, int kWide, int kImage>
struct Copied {
  using T = typename Z::T;
  static constexpr int kAll = Z::I * kWide * Z::CHUNKS, kCount = ceil_of(kAll, Z::THREADS);

  const T* from[kCount];
  Spot to[kCount];
  unsigned there = 0;

  __device__ inline Copied(const T* in, Spot ring, const Place& place, int row, int column, int64_t images,
                           int height, int width, int channels) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int e = static_cast<int>(threadIdx.x) + k * Z::THREADS, part = e % Z::CHUNKS;
      const int beside = e / Z::CHUNKS % kWide, i = e / (Z::CHUNKS * kWide);
      const int w = column + beside, c = place.first + part * 8;
      const int64_t n = place.image + i;
      there |= (i < Z::I && n < images && w >= 0 && w < width && c < channels ? 1u : 0u) << k;
      to[k] = ring + static_cast<Spot>(Z::template at<kImage>(i, beside) + part * 16);
      from[k] = in + ((n * height + row) * width + w) * channels + c;
    }
  }

  // The next row, if it `is`, or zeros.
  __device__ inline void ask(Spot stage, bool is, int64_t line) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (static_cast<int>(threadIdx.x) + k * Z::THREADS < kAll) {
        copy_16(to[k] + stage, from[k], is && (there >> k & 1) != 0);
      }
      from[k] += line;
    }
  }
};

// Puts zeros where nothing is copied to, and what only zeros of a band meet is read.
template <typename Z>
__device__ inline void no_columns(Spot ring) {
  constexpr int spare = Z::ALL - Z::WIDE;
  if constexpr (spare > 0) {
    for (int i = threadIdx.x; i < Z::D * Z::ST * Z::I * spare * Z::CHUNKS; i += Z::THREADS) {
      const int column = Z::WIDE + i / Z::CHUNKS % spare, image = i / (Z::CHUNKS * spare);
      write_16(ring + static_cast<Spot>(image / Z::I * Z::ROW + i % Z::CHUNKS * 16 +
                                        Z::template at<Z::IMAGE>(image % Z::I, column)),
               uint4{0, 0, 0, 0});
    }
  }
}

// Of four channels that two places have, each channel's two.
__device__ inline unsigned pair_of(uint2 one, uint2 two, int channel) {
  return __byte_perm(channel < 2 ? one.x : one.y, channel < 2 ? two.x : two.y,
                     channel % 2 == 0 ? 0x5410 : 0x7632);
}

constexpr int kAtOnce = ceil_of(RW_DIRECT_BLOCKS, 2);

// Into how many rows a block's part is cut: `ramp` steps more are taken for each, and as long as some takes
// its beginning.  Of the problem and not of the GPU that is here, as `chunk_of` of depthwise_tiles.h.
inline int band_rows(int64_t blocks, int rows, int ramp) {
  int best = rows;
  int64_t least = 0;
  for (int cut = 1; cut <= rows; ++cut) {
    const int chunk = ceil_of(rows, cut);
    const int64_t cost = ceil_of64(blocks * ceil_of(rows, chunk), kAtOnce) * (chunk + ramp + 3);
    if (cut == 1 || cost < least) least = cost, best = chunk;
  }
  return best;
}

}  // namespace
