// ---- first layers on tensor cores: few channels, multiplied from rows of the image as they lie -------------
//
// Terms of a product are pairs of elements that lie beside each other in such a row: of each row of taps as
// many as hold its S × C elements.  Taps may begin in the middle of a pair; what is beside them in it is
// multiplied by zeros.  Where the step from pixel to pixel is an odd number of elements, every second column
// is a phase of its own, in which the taps lie one element further on.  A tile of a volume has the rows of as
// many planes as there are taps in depth, and their taps are more rows of taps.

namespace {

// Sizes of a kernel.  TP rows of the result, of TU units, are a tile; a unit is 8 columns of a phase.  Of the
// result's kernel a warp has MT times 16 pixels and NT times 32 filters at once, of a gradient's MT times
// 16 terms and NT times 8 filters for all its pixels.
template <typename Type, int C_, int K_, int R_, int S_, int ST_, int PH_, int PW_, int TP_, int TU_,
          int MT_, int NT_, int WARPS_, int STAGES_, int DEPTH_ = 1, int PF_ = 0>
struct First {
  using T = Type;
  static constexpr int C = C_, K = K_, R = R_, S = S_, ST = ST_, DI = 1, PH = PH_, PW = PW_, TP = TP_,
                       TU = TU_, MT = MT_, NT = NT_, WARPS = WARPS_, STAGES = STAGES_, DEPTH = DEPTH_,
                       PF = PF_;
  static constexpr int LINES = DEPTH * R, RS = LINES * S, SC = S * C, THREADS = 32 * WARPS, UNITS = TP * TU;
  static constexpr int ALLOCATED = ceil_of(WARPS, 4) * 128;  // registers come for four warps
  static constexpr int STEP = ST * C, PHASES = STEP % 2 + 1;
  static constexpr int COLUMNS = 8 * PHASES * TU;
  // Elements of the tile before those of its first column, so that a row begins at 16 bytes.
  static constexpr int BEFORE = ceil_of(PW * C, 8) * 8;
  static constexpr int PAIRS = ceil_of(SC + (PHASES > 1 || PW * C % 2 ? 1 : 0), 2);  // of a row of taps
  static constexpr int BLOCKS = ceil_of(LINES * PAIRS, 8);  // of 16 terms
  static constexpr bool EXACT = 2 * PAIRS == SC && BLOCKS * 8 == LINES * PAIRS;
  static constexpr int ROWS = (TP - 1) * ST + R;
  static constexpr int CHUNKS = ceil_of(BEFORE - PW * C + (COLUMNS - 1) * STEP + 2 * PAIRS, 8);
  static constexpr int TILE = DEPTH * ROWS * CHUNKS * 16;
  static_assert(C <= 4 && K % 8 == 0 && UNITS % 2 == 0);

  // Whether the first pair of a row of taps begins one element before them.
  static constexpr int moved(int phase) { return (PW * C + phase * STEP) % 2; }
  // Where a pair lies beside the first: in bytes; what is none is the first.
  static constexpr int place(int pair) {
    const int line = pair / PAIRS, row = line / R * ROWS + line % R;
    return line < LINES ? row * (CHUNKS * 16) + pair % PAIRS * 4 : 0;
  }
  // Of the first pair of a unit's pixel; its phase's.
  static constexpr int of_pixel(int unit, int pixel, int phase) {
    const int column = (unit % TU * 8 + pixel) * PHASES + phase;
    return unit / TU * (ST * CHUNKS * 16) + (column * STEP + BEFORE - PW * C - moved(phase)) * 2;
  }
};

template <typename T, int... numbers>
constexpr int depth_taps<First<T, numbers...>> = First<T, numbers...>::DEPTH;
template <typename T, int... numbers>
constexpr int depth_front<First<T, numbers...>> = First<T, numbers...>::PF;

// Where a tile lies: its image, or plane of the result, and its first row and column there.
struct FirstTile {
  int plane, row, column;
};

template <typename Z>
__device__ inline FirstTile first_tile(int tile, int down, int across) {
  return {tile / (down * across), tile / across % down * Z::TP, tile % across * Z::COLUMNS};
}

// Copies a tile's rows by so many elements, zeros where there is no image.
template <typename Z, int wide>
__device__ inline void read_rows_by(Spot to, const typename Z::T* image, const FirstTile& at,
                                    const WideCall& z, int elements) {
  constexpr int pieces = Z::CHUNKS * 8 / wide;
  const int top = at.row * Z::ST - Z::PH, first = at.column * Z::STEP - Z::BEFORE;
  const int height = static_cast<int>(z.h);
  int64_t plane = at.plane;
  int deep = 0, depth = 1;
  if constexpr (Z::DEPTH > 1) {
    const int planes = static_cast<int>(z.planes);
    depth = static_cast<int>(z.d);
    deep = at.plane % planes * Z::ST - Z::PF;
    plane = int64_t{at.plane / planes} * depth + deep;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < Z::DEPTH * Z::ROWS * pieces; i += Z::THREADS) {
    const int line = i / pieces, t = line / Z::ROWS, h = top + line % Z::ROWS;
    const int e = first + i % pieces * wide;
    const bool known = Z::DEPTH == 1 || (deep + t >= 0 && deep + t < depth);
    const bool there = known && h >= 0 && h < height && e >= 0 && e < elements;
    const auto* const source = there ? image + ((plane + t) * height + h) * elements + e : image;
    const Spot spot = to + static_cast<Spot>(i * wide * 2);
    if constexpr (wide == 8) {
      copy_16(spot, source, there);
    } else if constexpr (wide == 2) {
      copy_4(spot, source, there);
    } else {
      const auto* const bits = reinterpret_cast<const unsigned short*>(source);
      write_2(spot, there ? __ldg(bits) : static_cast<unsigned short>(0));
    }
  }
}

// By as much as rows of the image are multiples of.
template <typename Z>
__device__ inline void read_rows(Spot to, const typename Z::T* image, const FirstTile& at,
                                 const WideCall& z) {
  const int elements = static_cast<int>(z.w) * Z::C;
  if (elements % 8 == 0) {
    read_rows_by<Z, 8>(to, image, at, z, elements);
  } else if (elements % 2 == 0) {
    read_rows_by<Z, 2>(to, image, at, z, elements);
  } else {
    read_rows_by<Z, 1>(to, image, at, z, elements);
  }
}

template <typename Z>
inline int64_t first_tiles(const WideCall& z, int& down, int& across) {
  down = static_cast<int>(ceil_of64(z.p, Z::TP));
  across = static_cast<int>(ceil_of64(z.q, Z::COLUMNS));
  return z.n * z.planes * down * across;
}

// Whether tiles and elements of a row can be counted.
inline bool first_counts(const WideCall& z, int64_t tiles) {
  return tiles <= kMostTiles && z.w < int64_t{1} << 24 && z.h < int64_t{1} << 24;
}

}  // namespace
