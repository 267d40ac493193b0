// ---- dense convolutions of few channels: the result, and the gradient of the image -----------------------
//
// The gradient of the image is a result of the result's gradient with its taps in the other order.  A
// product's rows are 16 pixels of a row, its columns 8 filters, its terms 16 channels.  A warp has HIGH rows
// of 16 pixels with a WAYS-th of the filters in registers; a row that it loads serves the R rows of the
// result that read it.  Filters are in an order by which a lane's sums of up to four products are filters
// beside each other.

namespace {

template <typename Z, bool back>
struct NarrowImage {
  static constexpr int TOP = back ? Z::R - 1 - Z::PH : Z::PH, LEFT = back ? Z::S - 1 - Z::PW : Z::PW;
  static constexpr int IN = back ? Z::K : Z::C, OUT = back ? Z::C : Z::K;
  static constexpr int PIXEL = kPixelOf<IN>, PIECES = IN / 8;
  static constexpr int BLOCKS = OUT / 8 / Z::WAYS;  // of 8 filters, a warp's
  static constexpr int BESIDE = Z::TQ / 16, DOWN = Z::WARPS / Z::WAYS / BESIDE, HIGH = Z::TP / DOWN;
  static constexpr int FILTERS = Z::RS * OUT * PIXEL, TILE = Z::ROWS * Z::COLUMNS * PIXEL;
  static constexpr int BYTES = FILTERS + 2 * TILE;
  static constexpr int SUMS = HIGH * BLOCKS * 4;
  static constexpr int RESIDENT = resident_of(BYTES, Z::THREADS, SUMS + Z::R * BLOCKS * 2 + 40);
  static_assert(OUT / 8 % Z::WAYS == 0 && Z::WARPS % (Z::WAYS * BESIDE) == 0 && Z::TP % DOWN == 0);
};

// Of a warp's blocks of filters, how many from one on are taken together.
template <int block, int blocks>
constexpr int kTogether = blocks - block >= 4 ? 4 : blocks - block >= 2 ? 2 : 1;

// Which line of its warp's filters one is.
template <int block, int blocks>
__device__ inline int line_of(int filter) {
  if constexpr (block < blocks) {
    constexpr int many = kTogether<block, blocks>;
    if (filter >= 8 * (block + many)) return line_of<block + many, blocks>(filter);
    const int own = filter - 8 * block;
    return 8 * block + own % (2 * many) / 2 * 8 + own / (2 * many) * 2 + own % 2;
  }
  return filter;
}

// The filters of all taps, 16 bytes at a time.
template <typename Z, bool back>
__device__ inline void read_narrow_filters(Spot to, const typename Z::T* weight) {
  using I = NarrowImage<Z, back>;
  constexpr int own = I::BLOCKS * 8, pieces = Z::C / 8;
  auto line = [](int place, int filter) {
    return place * I::OUT + filter / own * own + line_of<0, I::BLOCKS>(filter % own);
  };
#pragma unroll 2
  for (int i = threadIdx.x; i < Z::K * Z::RS * pieces; i += Z::THREADS) {
    const int piece = i % pieces, tap = i / pieces % Z::RS, k = i / (pieces * Z::RS);
    const auto* const from = weight + int64_t{i} * 8;
    if constexpr (back) {
      const uint4 v = global_16(from);
      unsigned short eight[8];
      memcpy(eight, &v, sizeof(v));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int mine = line(Z::RS - 1 - tap, piece * 8 + j);
        write_2(to + static_cast<Spot>(mine * I::PIXEL + k * 2), eight[j]);
      }
    } else {
      copy_16(to + static_cast<Spot>(line(tap, k) * I::PIXEL + piece * 16), from, true);
    }
  }
}

// Some of 16 filters' worth of bytes from memory, or to it.
template <int words>
__device__ inline void read_words(unsigned (&to)[4], const void* from) {
  if constexpr (words == 4) {
    const uint4 v = __ldg(static_cast<const uint4*>(from));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (words == 2) {
    const uint2 v = __ldg(static_cast<const uint2*>(from));
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = __ldg(static_cast<const unsigned*>(from));
  }
}

template <int words>
__device__ inline void write_words(void* to, const unsigned (&of)[4]) {
  if constexpr (words == 4) {
    *static_cast<uint4*>(to) = make_uint4(of[0], of[1], of[2], of[3]);
  } else if constexpr (words == 2) {
    *static_cast<uint2*>(to) = make_uint2(of[0], of[1]);
  } else {
    *static_cast<unsigned*>(to) = of[0];
  }
}

// A pixel's sums of the blocks from one on, and what follows them, to memory.
template <typename Z, typename After, int block, int blocks>
__device__ inline void write_pixel(typename Z::T* out, const typename Z::T* source, int64_t pixel, int filter,
                                   const float (&sums)[blocks][4], int half) {
  if constexpr (block < blocks) {
    constexpr int many = kTogether<block, blocks>;
    const int mine = filter + 8 * block + static_cast<int>(threadIdx.x) % 4 * 2 * many;
    unsigned with[4] = {}, both[4] = {};
    if constexpr (After::kPerChannel) read_words<many>(with, source + mine);
    if constexpr (After::kWhole) read_words<many>(with, source + pixel + mine);
#pragma unroll
    for (int i = 0; i < many; ++i) {
      float2 operand = make_float2(0, 0);
      if constexpr (After::kReads) operand = both_of<typename Z::T>(with[i]);
      both[i] = two_of<typename Z::T>(After::of(sums[block + i][2 * half], operand.x),
                                      After::of(sums[block + i][2 * half + 1], operand.y));
    }
    write_words<many>(out + pixel + mine, both);
    write_pixel<Z, After, block + many, blocks>(out, source, pixel, filter, sums, half);
  }
}

template <typename Z, typename After, bool back>
__global__ void __launch_bounds__(Z::THREADS, NarrowImage<Z, back>::RESIDENT)
    narrow_image(const typename Z::T* __restrict__ image, const typename Z::T* __restrict__ weight,
                 typename Z::T* __restrict__ out, const typename Z::T* __restrict__ source, int height,
                 int width, Tiled made) {
  using T = typename Z::T;
  using I = NarrowImage<Z, back>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int way = warp % Z::WAYS, place = warp / Z::WAYS;
  const int down = place / I::BESIDE * I::HIGH, beside = place % I::BESIDE * 16;
  const Spot filters = shared_memory(), stage = filters + I::FILTERS;
  // Of this lane's pixel and filter, in the first half of a product's terms.
  const Spot of_image = static_cast<Spot>((down * Z::COLUMNS + beside + lane % 16) * I::PIXEL);
  const Spot of_filter = filters + static_cast<Spot>((way * I::BLOCKS * 8 + lane % 8) * I::PIXEL);
  after_the_one_before();
  auto read = [&](int tile, int turn) {
    const TilePlace at = tile_place<Z>(tile, made);
    read_rows<Z::ROWS, Z::COLUMNS, I::IN, Z::THREADS>(stage + static_cast<Spot>(turn * I::TILE), image, at.n,
                                                      height, width, at.row - I::TOP, at.column - I::LEFT);
  };
  read(blockIdx.x, 0);
  read_narrow_filters<Z, back>(filters, weight);
  copies_end();
  through_tiles<Z>(made, read, [&](const TilePlace& at, int turn) {
    const int row = at.row + down, column = at.column + beside;
    if (row >= made.height || column >= made.width) return;
    const Spot pixels = stage + static_cast<Spot>(turn * I::TILE) + of_image;
    float sums[I::HIGH][I::BLOCKS][4] = {};
#pragma unroll
    for (int s = 0; s < Z::S; ++s) {
#pragma unroll
      for (int piece = 0; piece < I::PIECES; piece += 2) {
        const bool whole = piece + 1 < I::PIECES;  // 16 terms, or 8
        unsigned b[Z::R][I::BLOCKS + 1][2];
#pragma unroll
        for (int r = 0; r < Z::R; ++r) {
#pragma unroll
          for (int j = 0; j < I::BLOCKS; j += 2) {
            const int beyond = j + 1 < I::BLOCKS ? lane / 16 * 8 : 0;
            unsigned four[4];
            matrices_4<false>(four, of_filter + static_cast<Spot>(
                                        ((r * Z::S + s) * I::OUT + j * 8 + beyond) * I::PIXEL +
                                        (piece + (whole ? lane / 8 % 2 : 0)) * 16));
            b[r][j][0] = four[0], b[r][j][1] = four[1], b[r][j + 1][0] = four[2], b[r][j + 1][1] = four[3];
          }
        }
        const Spot here = pixels + static_cast<Spot>(s * I::PIXEL + (piece + (whole ? lane / 16 : 0)) * 16);
#pragma unroll
        for (int h = 0; h < I::HIGH + Z::R - 1; ++h) {
          unsigned a[4];
          matrices_4<false>(a, here + static_cast<Spot>(h * Z::COLUMNS * I::PIXEL));
#pragma unroll
          for (int r = 0; r < Z::R; ++r) {
            if (h - r < 0 || h - r >= I::HIGH) continue;
#pragma unroll
            for (int j = 0; j < I::BLOCKS; ++j) {
              if (whole) {
                multiply_16(sums[h - r][j], a, b[r][j][0], b[r][j][1], T{});
              } else {
                multiply_8(sums[h - r][j], a, b[r][j][0], T{});
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < I::HIGH; ++h) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int q = column + half * 8 + lane / 4;
        if (row + h >= made.height || q >= made.width) continue;
        const int64_t pixel = ((at.n * made.height + row + h) * made.width + q) * I::OUT;
        write_pixel<Z, After, 0>(out, source, pixel, way * I::BLOCKS * 8, sums[h], half);
      }
    }
  });
}

template <typename T, typename After, bool back, int... numbers>
int narrow_made(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Narrow<T, numbers...>;
  using I = NarrowImage<Z, back>;
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  const WideCall z = wide_call(call);
  const Tiled made = back ? tiled<Z>(z.n, z.h, z.w) : tiled<Z>(z.n, z.p, z.q);
  if (made.tiles < 0) return finished(cudaErrorInvalidValue);
  const int most = multiprocessors() * I::RESIDENT, each = ceil_of(made.tiles, most);
  const dim3 grid(static_cast<unsigned>(ceil_of(made.tiles, each)));
  return finished(launch_with(narrow_image<Z, After, back>, grid, Z::THREADS, I::BYTES, stream,
                              static_cast<const T*>(z.first), static_cast<const T*>(z.second),
                              static_cast<T*>(z.out), static_cast<const T*>(z.source),
                              back ? call.p : call.h, back ? call.q : call.w, made));
}

template <typename T, typename Out, typename After, int... numbers>
int narrow_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  return narrow_made<T, After, false, numbers...>(call, stream);
}

template <typename T, typename Out, typename After, int... numbers>
int narrow_dgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  return narrow_made<T, After, true, numbers...>(call, stream);
}

}  // namespace
