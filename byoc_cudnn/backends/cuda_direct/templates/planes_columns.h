// ---- dense convolutions of volumes with 32 channels on tensor cores: what their kernels share -------------
//
// A library's implicit product reads each voxel once for each tap, and with 32 channels that is what it waits
// for.  Here a block goes down a column of the volume, TP rows by TQ columns: its planes are copied into shared
// memory, once and while the one before is multiplied, and all taps read them there.
//
// A plane's pixel has 64 bytes: 32 channels.  Its four pieces of 16 are in an order that depends on its column,
// so that those of eight pixels beside each other lie in different banks.

namespace {

constexpr int kPixel = 64, kPieces = 4, kChannels = 32;  // bytes, pieces and channels of a pixel

template <typename Type, int C_, int K_, int DEPTH_, int R_, int S_, int PF_, int PH_, int PW_, int TP_,
          int TQ_>
struct Planes {
  using T = Type;
  static constexpr int C = C_, K = K_, DEPTH = DEPTH_, R = R_, S = S_, PF = PF_, PH = PH_, PW = PW_, TP = TP_,
                       TQ = TQ_;
  static constexpr int WARPS = 8, THREADS = 32 * WARPS, TAPS = DEPTH * R * S;
  static constexpr int ROWS = TP + R - 1, COLUMNS = (TQ + S) / 2 * 2, RING = DEPTH + 1;
  static constexpr int PLANE = ROWS * COLUMNS * kPixel;  // bytes
  static_assert(C % kChannels == 0 && K % kChannels == 0 && TQ % 16 == 0);
};

// Where a piece of a pixel is.
__device__ inline Spot piece_of(int column, int piece) {
  return static_cast<Spot>(column * kPixel + (piece ^ (column >> 1 & 3)) * 16);
}

// Sizes of a tensor with channels last.
struct Volume {
  int depth, height, width, channels;
};

// Copies some rows and columns of a plane, zeros where the tensor has none.
template <int rows, int columns, int pitch, int threads, typename T>
__device__ inline void read_plane(Spot to, const T* tensor, const Volume& of, int64_t n, int plane, int row,
                                  int column, int channel) {
  const bool known = plane >= 0 && plane < of.depth;
  const T* const from = tensor + (n * of.depth + plane) * of.height * int64_t{of.width} * of.channels;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * columns * kPieces; i += threads) {
    const int piece = i % kPieces, q = i / kPieces % columns, p = i / (kPieces * columns);
    const int h = row + p, w = column + q;
    const bool there = known && h >= 0 && h < of.height && w >= 0 && w < of.width;
    const T* const source = from + (int64_t{h} * of.width + w) * of.channels + channel + piece * 8;
    copy_16(to + static_cast<Spot>(p * pitch * kPixel) + piece_of(q, piece), there ? source : tensor, there);
  }
}

// Columns of the volume, and what of them a block has: equal shares of all planes, one column after another.
struct Columns {
  int down, across, planes;
  int64_t all;  // planes of all columns
};

template <typename Z>
inline Columns columns_of(int64_t n, int planes, int height, int width) {
  const int down = static_cast<int>(ceil_of64(height, Z::TP)), across = static_cast<int>(ceil_of64(width, Z::TQ));
  return {down, across, planes, n * down * across * planes};
}

}  // namespace
