// ---- grouped convolutions: which taps a pixel of the result has ------------------------------------------
//
// The result's pixels are taken in phases.  fprop has one: tap (r, s) of pixel (p, q) is pixel
// (p*ST + r*DI - PH, q*ST + s*DI - PW) of the image.  dgrad has ST × ST: the taps of pixels
// (i*ST + a, j*ST + b) are those for which a + PH - r*DI is a multiple of ST, and then they are pixels
// (i + (a + PH - r*DI)/ST, …) of the result's gradient.

namespace {

constexpr int floor_of(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

template <int R, int S>
struct Taps {
  int count = 0, phases = 0, top = 0, left = 0, rows = 0, columns = 0;  // of the tile's halo
  int begin[R * S + 17] = {};  // of each phase
  int r[R * S] = {}, s[R * S] = {}, row[R * S] = {}, column[R * S] = {};
};

template <int R, int S, int ST, int DI, int PH, int PW, bool back>
constexpr Taps<R, S> taps_of() {
  Taps<R, S> out;
  constexpr int many = back ? ST : 1;
  for (int a = 0; a < many; ++a) {
    for (int b = 0; b < many; ++b) {
      out.begin[out.phases++] = out.count;
      for (int r = 0; r < R; ++r) {
        for (int s = 0; s < S; ++s) {
          int row = r * DI - PH, column = s * DI - PW;
          if (back) {
            row = a + PH - r * DI, column = b + PW - s * DI;
            if (row % ST != 0 || column % ST != 0) continue;
            row /= ST, column /= ST;
          }
          const int i = out.count++;
          out.r[i] = r, out.s[i] = s, out.row[i] = row, out.column[i] = column;
        }
      }
    }
  }
  out.begin[out.phases] = out.count;
  int bottom = out.row[0], right = out.column[0];
  out.top = bottom, out.left = right;
  for (int i = 0; i < out.count; ++i) {
    if (out.row[i] < out.top) out.top = out.row[i];
    if (out.row[i] > bottom) bottom = out.row[i];
    if (out.column[i] < out.left) out.left = out.column[i];
    if (out.column[i] > right) right = out.column[i];
  }
  out.rows = bottom - out.top, out.columns = right - out.left;
  for (int i = 0; i < out.count; ++i) out.row[i] -= out.top, out.column[i] -= out.left;
  return out;
}

// Sizes of a kernel.  CG, KG: channels and filters of a group of the problem, of which MERGED are taken
// as one; GB of these are a block's.  TN images, TP rows, TU times 8 columns of the result (of one of
// its phases) are a tile; WARPS have MT times 16 of its pixels each.
template <typename Type, int CG_, int KG_, int MERGED_, int R_, int S_, int ST_, int DI_, int PH_,
          int PW_, int GB_, int TN_, int TP_, int TU_, int MT_, int WARPS_, int STAGES_>
struct Shape {
  using T = Type;
  static constexpr int CG = CG_, KG = KG_, MERGED = MERGED_, R = R_, S = S_, ST = ST_, DI = DI_,
                       PH = PH_, PW = PW_, GB = GB_, TN = TN_, TP = TP_, TU = TU_, MT = MT_,
                       WARPS = WARPS_, STAGES = STAGES_;
  static constexpr int CI = CG * MERGED, KI = KG * MERGED;  // of groups taken as one
  static constexpr int THREADS = 32 * WARPS, UNITS = TN * TP * TU, RS = R * S;
  static_assert(CI % 8 == 0 && KI % 8 == 0, "channels come by 16 bytes");
};

// The tile of what is read, in shared memory: pixels of `chunks` times 16 bytes; of STEP columns side
// by side each STEP-th is a neighbour, so that eight pixels of a row of the result are too.
template <typename Z, bool back>
struct Tile {
  static constexpr int STEP = back ? 1 : Z::ST;
  static constexpr Taps<Z::R, Z::S> kTaps = taps_of<Z::R, Z::S, Z::ST, Z::DI, Z::PH, Z::PW, back>();
  static constexpr int ROWS = (Z::TP - 1) * STEP + kTaps.rows + 1;
  static constexpr int COLUMNS = (8 * Z::TU - 1) * STEP + kTaps.columns + 1;
  static constexpr int HALF = ceil_of(COLUMNS, STEP), WIDE = HALF * STEP;
  static constexpr int CHUNKS = Z::GB * (back ? Z::KI : Z::CI) / 8, PITCH = odd_of(CHUNKS);
  static constexpr int BYTES = Z::TN * ROWS * WIDE * PITCH * 16;

  // In pixels.
  static constexpr int place(int image, int row, int column) {
    return (image * ROWS + row) * WIDE + column % STEP * HALF + column / STEP;
  }
  static constexpr int of_tap(int row, int column) {
    return row * WIDE + column % STEP * HALF + column / STEP;
  }
  // Of the pixel that tap (0, 0) of a unit's first pixel is.
  static constexpr int of_unit(int unit) {
    return (unit / (Z::TP * Z::TU) * ROWS + unit / Z::TU % Z::TP * STEP) * WIDE + unit % Z::TU * 8;
  }
};

// Where a tile lies: its first image, row and column of the result, or of its phases.
struct Where {
  int64_t n;
  int row, column;
};

template <typename Z>
__device__ inline Where where_of(int tile, int down, int across) {
  return {int64_t{tile / (down * across)} * Z::TN, tile / across % down * Z::TP,
          tile % across * (8 * Z::TU)};
}

// Copies a tile: images of `height` × `width` pixels of `channels`, of which it begins at `channel`.
template <typename Z, bool back>
__device__ inline void read_tile(Spot to, const typename Z::T* image, const Where& at, int64_t images,
                                 int height, int width, int channels, int channel) {
  using X = Tile<Z, back>;
  constexpr Taps<Z::R, Z::S> taps = X::kTaps;
  const int top = at.row * X::STEP + taps.top, left = at.column * X::STEP + taps.left;
  constexpr int count = Z::TN * X::ROWS * X::COLUMNS * X::CHUNKS;
  for (int i = threadIdx.x; i < count; i += Z::THREADS) {
    const int chunk = i % X::CHUNKS, pixel = i / X::CHUNKS;
    const int column = pixel % X::COLUMNS, line = pixel / X::COLUMNS;
    const int row = line % X::ROWS, n = line / X::ROWS;
    const int h = top + row, w = left + column;
    const bool there = h >= 0 && h < height && w >= 0 && w < width && at.n + n < images &&
                       channel + chunk * 8 < channels;
    const typename Z::T* from =
        image + (((at.n + n) * height + h) * int64_t{width} + w) * channels + channel + chunk * 8;
    copy_16(to + static_cast<Spot>((X::place(n, row, column) * X::PITCH + chunk) * 16),
            there ? from : image, there);
  }
}

}  // namespace
