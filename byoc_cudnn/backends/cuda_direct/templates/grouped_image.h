// ---- grouped convolutions on tensor cores: the result, and the gradient of the image ---------------------
//
// A block keeps the filters of its groups and goes through tiles of pixels: while it multiplies one, the
// next is copied.  A product's rows are 16 pixels of the result, its columns 8 filters, its terms 16 of
// a group's channels and taps, read from the tile where they are.

namespace {

template <typename Z, bool back>
struct Image {
  using X = Tile<Z, back>;
  static constexpr int IN = back ? Z::KI : Z::CI, OUT = back ? Z::CI : Z::KI;
  static constexpr int CHUNKS = Z::RS * IN / 8, PITCH = odd_of(CHUNKS);  // of a filter
  static constexpr int FILTERS = Z::GB * OUT;
  static constexpr int FILTER_BYTES = (FILTERS * PITCH + 4) * 16;
  static constexpr int OUT_CHUNKS = FILTERS / 8, OUT_PITCH = odd_of(OUT_CHUNKS);
  static constexpr int OUT_BYTES = Z::MT * 16 * OUT_PITCH * 16;  // a warp's
  static constexpr int BYTES = FILTER_BYTES + Z::WARPS * OUT_BYTES + Z::STAGES * X::BYTES;
  static constexpr int RESIDENT = resident_of(BYTES, Z::THREADS, 56 + (OUT / 8 - 1) * (Z::MT + 1) * 4);
};

// The block's filters, in the order of the phases' taps; zeros where two groups that are taken as one
// have nothing in common.
template <typename Z, bool back>
__device__ inline void read_filters(Spot to, const typename Z::T* weight, int slab, int filters) {
  using I = Image<Z, back>;
  constexpr Taps<Z::R, Z::S> taps = I::X::kTaps;
  const int first = slab * I::FILTERS;
  if constexpr (!back && Z::MERGED == 1) {
    for (int i = threadIdx.x; i < I::FILTERS * I::CHUNKS; i += Z::THREADS) {
      const int filter = i / I::CHUNKS, chunk = i % I::CHUNKS;
      const bool there = first + filter < filters;
      const int64_t from = (int64_t{first + filter} * I::CHUNKS + chunk) * 8;
      copy_16(to + static_cast<Spot>((filter * I::PITCH + chunk) * 16),
              there ? weight + from : weight, there);
    }
  } else {
    const auto* bits = reinterpret_cast<const unsigned short*>(weight);
    constexpr int inner = back ? I::FILTERS : I::IN, outer = back ? I::IN : I::FILTERS;
#pragma unroll
    for (int tap = 0; tap < taps.count; ++tap) {
      const int place = taps.r[tap] * Z::S + taps.s[tap];
      for (int i = threadIdx.x; i < inner * outer; i += Z::THREADS) {
        const int filter = back ? i % inner : i / inner, term = back ? i / inner : i % inner;
        const int o = first + filter;  // of the result's channels
        int64_t from = 0;
        bool there = o < filters;
        if constexpr (back) {
          there = there && o / Z::CG % Z::MERGED == term / Z::KG;
          const int k = o / Z::CG * Z::KG + term % Z::KG;
          from = (int64_t{k} * Z::RS + place) * Z::CG + o % Z::CG;
        } else {
          there = there && o / Z::KG % Z::MERGED == term / Z::CG;
          from = (int64_t{o} * Z::RS + place) * Z::CG + term % Z::CG;
        }
        write_2(to + static_cast<Spot>((filter * I::PITCH * 8 + tap * I::IN + term) * 2),
                there ? bits[from] : static_cast<unsigned short>(0));
      }
    }
  }
}

// The products of MT × 16 pixels with all filters of a block, for the taps of a phase; their sums,
// and what follows them, go to `out`, a line of the block's channels for each pixel; an operand of the
// result's shape has been put there.  `bias` is that of the block's first channel, `left` the channels.
template <typename Z, typename After, bool back, int phase>
__device__ inline void multiply_taps(Spot tile, Spot filters, Spot out, int unit,
                                     const typename Z::T* bias, int left) {
  using I = Image<Z, back>;
  using X = typename I::X;
  constexpr Taps<Z::R, Z::S> taps = X::kTaps;
  constexpr int NB = I::OUT / 8, each = I::IN / 8;
  constexpr int begin = taps.begin[phase] * each, end = taps.begin[phase + 1] * each;
  const int lane = threadIdx.x % 32;
  const bool second = lane >= 16;
  Spot pixels[Z::MT];
#pragma unroll
  for (int m = 0; m < Z::MT; ++m) {
    const int mine = unit + 2 * m + lane / 8 % 2, u = mine < Z::UNITS ? mine : Z::UNITS - 1;
    pixels[m] = tile + static_cast<Spot>((X::of_unit(u) + lane % 8) * X::PITCH * 16);
  }
  Spot rows = filters + static_cast<Spot>((lane % 8 * I::PITCH + lane / 8) * 16);
#pragma unroll 1
  for (int group = 0; group < Z::GB; ++group) {
    float sums[Z::MT][NB][4] = {};
#pragma unroll
    for (int c = begin; c < end; c += 4) {
      unsigned b[NB][4];
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        matrices_4<false>(b[n], rows + static_cast<Spot>((n * 8 * I::PITCH + c) * 16));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int one = c + 2 * half, two = one + 1 < end ? one + 1 : one;
        if (one >= end) break;
        const int of_one = X::of_tap(taps.row[one / each], taps.column[one / each]) * X::PITCH + one % each;
        const int of_two = X::of_tap(taps.row[two / each], taps.column[two / each]) * X::PITCH + two % each;
        const Spot place = static_cast<Spot>((second ? of_two : of_one) * 16);
#pragma unroll
        for (int m = 0; m < Z::MT; ++m) {
          unsigned a[4];
          matrices_4<false>(a, pixels[m] + place);
#pragma unroll
          for (int n = 0; n < NB; ++n) {
            if (two > one) {
              multiply_16(sums[m][n], a, b[n][2 * half], b[n][2 * half + 1], typename Z::T{});
            } else {
              multiply_8(sums[m][n], a, b[n][2 * half], typename Z::T{});
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Z::MT; ++m) {
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        const int channel = group * I::OUT + n * 8 + lane % 4 * 2;
        const Spot at = out + static_cast<Spot>((m * 16 + lane / 4) * I::OUT_PITCH * 16 + channel * 2);
        float2 operand = make_float2(0, 0);
        if constexpr (After::kPerChannel) {
          if (channel < left) {
            operand = both_of<typename Z::T>(__ldg(reinterpret_cast<const unsigned*>(bias + channel)));
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Spot mine = at + half * 8 * I::OUT_PITCH * 16;
          if constexpr (After::kWhole) operand = both_of<typename Z::T>(read_4(mine));
          write_4(mine, two_of<typename Z::T>(After::of(sums[m][n][2 * half], operand.x),
                                              After::of(sums[m][n][2 * half + 1], operand.y)));
        }
      }
      pixels[m] += each * 16;
    }
    rows += I::OUT * I::PITCH * 16;
  }
}

template <typename Z, typename After, bool back, int phase>
__device__ inline void multiply_phase(int wanted, Spot tile, Spot filters, Spot out, int unit,
                                      const typename Z::T* bias, int left) {
  if constexpr (phase < (back ? Z::ST * Z::ST : 1)) {
    if (wanted == phase) {
      multiply_taps<Z, After, back, phase>(tile, filters, out, unit, bias, left);
    } else {
      multiply_phase<Z, After, back, phase + 1>(wanted, tile, filters, out, unit, bias, left);
    }
  }
}

template <typename Z, typename After, bool back>
__global__ void __launch_bounds__(Z::THREADS, Image<Z, back>::RESIDENT)
    grouped_image(const typename Z::T* __restrict__ in, const typename Z::T* __restrict__ weight,
                  typename Z::T* __restrict__ out, WideCall z, int down, int across,
                  int tiles) {
  using I = Image<Z, back>;
  using X = typename I::X;
  constexpr int step = back ? Z::ST : 1, phases = step * step;
  constexpr int parts = ceil_of(Z::UNITS, 2 * Z::MT);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slab = blockIdx.x;
  const Spot filters = shared_memory(), staged = filters + I::FILTER_BYTES + warp * I::OUT_BYTES;
  const Spot tile_0 = filters + I::FILTER_BYTES + Z::WARPS * I::OUT_BYTES;
  const int height = static_cast<int>(back ? z.p : z.h), width = static_cast<int>(back ? z.q : z.w);
  const int ins = static_cast<int>(back ? z.k : z.c), outs = static_cast<int>(back ? z.c : z.k);
  const int rows = static_cast<int>(back ? z.h : z.p), columns = static_cast<int>(back ? z.w : z.q);
  const int channel = slab * Z::GB * I::IN, first = slab * I::FILTERS;
  const auto* const source = static_cast<const typename Z::T*>(z.source);
  after_the_one_before();
  int turn = 0;
  auto read = [&](int tile, int to) {
    read_tile<Z, back>(tile_0 + to * X::BYTES, in, where_of<Z>(tile, down, across), z.n, height, width,
                       ins, channel);
  };
  read(blockIdx.y, 0);
  read_filters<Z, back>(filters, weight, slab, outs);
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
    for (int item = warp; item < parts * phases; item += Z::WARPS) {
      const int unit = item / phases * 2 * Z::MT, phase = item % phases;
      // Eight channels of a pixel at a time, those that there are.
      auto each = [&](auto&& what) {
        constexpr int count = Z::MT * 16 * I::OUT_CHUNKS;
#pragma unroll 4
        for (int i = lane; i < count; i += 32) {
          const int pixel = i / I::OUT_CHUNKS, chunk = i % I::OUT_CHUNKS, u = unit + pixel / 8;
          const int64_t n = at.n + u / (Z::TP * Z::TU);
          const int h = (at.row + u / Z::TU % Z::TP) * step + phase / step;
          const int w = (at.column + u % Z::TU * 8 + pixel % 8) * step + phase % step;
          const int c = first + chunk * 8;
          if (u < Z::UNITS && n < z.n && h < rows && w < columns && c < outs) {
            what(staged + static_cast<Spot>((pixel * I::OUT_PITCH + chunk) * 16),
                 ((n * rows + h) * columns + w) * outs + c, n, h, w, c);
          }
        }
      };
      if constexpr (After::kWhole) {
        each([&](Spot to, int64_t from, int64_t, int, int, int) {
          write_16(to, global_16(source + from));
        });
        __syncwarp();
      }
      multiply_phase<Z, After, back, 0>(phase, tile_0 + turn * X::BYTES, filters, staged, unit,
                                        source + first, outs - first);
      __syncwarp();
      each([&](Spot from, int64_t to, int64_t n, int h, int w, int c) {
        const uint4 eight = read_16(from);
        *reinterpret_cast<uint4*>(out + to) = eight;
        if constexpr (Z::MERGED > 1) {
          if (has_nan<typename Z::T>(eight)) {
            mend<Z, After, back>(out, to, in, weight, z, Z::CG, Z::KG, n, h, w, c);
          }
        }
      });
      __syncwarp();
    }
    __syncthreads();
    if constexpr (Z::STAGES == 2) {
      turn ^= 1;
    } else {
      if (next < tiles) read(next, 0);
      copies_end();
    }
  }
}

template <typename Z, typename After, bool back>
int grouped(const WideCall& z, cudaStream_t stream) {
  using I = Image<Z, back>;
  const int64_t rows = back ? ceil_of64(z.h, Z::ST) : z.p, columns = back ? ceil_of64(z.w, Z::ST) : z.q;
  const int down = static_cast<int>(ceil_of64(rows, Z::TP));
  const int across = static_cast<int>(ceil_of64(columns, 8 * Z::TU));
  const int64_t tiles = ceil_of64(z.n, Z::TN) * down * across;
  if (tiles > kMostTiles) return finished(cudaErrorInvalidValue);
  const int slabs = static_cast<int>(ceil_of64(back ? z.c : z.k, I::FILTERS));
  const int64_t blocks = ceil_of64(int64_t{multiprocessors()} * I::RESIDENT, slabs);
  const int64_t each = ceil_of64(tiles, blocks), high = ceil_of64(tiles, each);
  using T = typename Z::T;
  return finished(launch_with(
      grouped_image<Z, After, back>, dim3(static_cast<unsigned>(slabs), static_cast<unsigned>(high)),
      Z::THREADS, I::BYTES, stream, static_cast<const T*>(z.first), static_cast<const T*>(z.second),
      static_cast<T*>(z.out), z, down, across, static_cast<int>(tiles)));
}

template <typename T, typename Out, typename After, int... numbers>
int grouped_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  return grouped<Shape<T, numbers...>, After, false>(wide_call(call), stream);
}

template <typename T, typename Out, typename After, int... numbers>
int grouped_dgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  return grouped<Shape<T, numbers...>, After, true>(wide_call(call), stream);
}

}  // namespace
