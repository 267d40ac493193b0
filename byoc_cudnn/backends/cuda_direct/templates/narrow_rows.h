// ---- dense convolutions of few channels on tensor cores: what their kernels share ------------------------
//
// With 16 or 32 channels an implicit product waits for the cache, as it reads each pixel once for each tap.
// Here a block goes through tiles of images, TP rows by TQ columns of the result: what they read is copied
// into shared memory once, while the tile before is multiplied, and all taps read it there.
//
// A pixel has an odd number of pieces of 16 bytes, so that those of eight pixels beside each other lie in
// different banks.

namespace {

template <typename Type, int C_, int K_, int R_, int S_, int PH_, int PW_, int TP_, int TQ_, int WAYS_,
          int WARPS_>
struct Narrow {
  using T = Type;
  static constexpr int C = C_, K = K_, R = R_, S = S_, PH = PH_, PW = PW_, TP = TP_, TQ = TQ_, WAYS = WAYS_,
                       WARPS = WARPS_;
  static constexpr int THREADS = 32 * WARPS, RS = R * S, ROWS = TP + R - 1, COLUMNS = TQ + S - 1;
  static_assert(C % 8 == 0 && K % 8 == 0 && TQ % 16 == 0, "channels come by 16 bytes");
};

// Bytes of a pixel.
template <int channels>
constexpr int kPixelOf = odd_of(channels / 8) * 16;

// Images with channels last, and the tiles of a result.
struct Tiled {
  int height, width, down, across, tiles;
};

struct TilePlace {
  int64_t n;
  int row, column;
};

template <typename Z>
__device__ inline TilePlace tile_place(int tile, const Tiled& of) {
  return {tile / (of.down * of.across), tile / of.across % of.down * Z::TP, tile % of.across * Z::TQ};
}

template <typename Z>
inline Tiled tiled(int64_t n, int64_t height, int64_t width) {
  const int64_t down = ceil_of64(height, Z::TP), across = ceil_of64(width, Z::TQ), all = n * down * across;
  return {static_cast<int>(height), static_cast<int>(width), static_cast<int>(down), static_cast<int>(across),
          static_cast<int>(all > kMostTiles ? -1 : all)};
}

// Copies some rows and columns of an image, zeros where it has none.
template <int rows, int columns, int channels, int threads, typename T>
__device__ inline void read_rows(Spot to, const T* images, int64_t n, int height, int width, int row,
                                 int column) {
  constexpr int pieces = channels / 8, pixel = kPixelOf<channels>;
  const T* const from = images + n * height * width * channels;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * columns * pieces; i += threads) {
    const int piece = i % pieces, q = i / pieces % columns, p = i / (pieces * columns);
    const int h = row + p, w = column + q;
    const bool there = h >= 0 && h < height && w >= 0 && w < width;
    const T* const source = from + (int64_t{h} * width + w) * channels + piece * 8;
    copy_16(to + static_cast<Spot>((p * columns + q) * pixel + piece * 16),
            there ? source : images, there);
  }
}

// Goes through a block's tiles, the first of which is asked for: `read(tile, stage)` asks for one,
// `multiply(place, stage)` has it in the one of two stages where it then is.
template <typename Z, typename Read, typename Multiply>
__device__ inline void through_tiles(const Tiled& of, Read&& read, Multiply&& multiply) {
  int turn = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < of.tiles; tile += gridDim.x, turn ^= 1) {
    const int next = tile + static_cast<int>(gridDim.x);
    wait_copies<0>();
    __syncthreads();
    if (next < of.tiles) read(next, turn ^ 1);
    copies_end();
    multiply(tile_place<Z>(tile, of), turn);
  }
}

}  // namespace
