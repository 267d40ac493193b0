// ---- depthwise on tensor cores, stride 1, in equal shares: the result, and the gradient of the image --------
//
// Products as in `bands_image.h`.

namespace {

template <typename Z, typename After, bool back>
__global__ void __launch_bounds__(Z::THREADS, Z::F)
    shares_image(const typename Z::T* __restrict__ in, const typename Z::T* __restrict__ weight,
                 typename Z::T* __restrict__ out, WideCall z, int slabs, int across, int all, int share) {
  using T = typename Z::T;
  constexpr int R = Z::R;
  // With many rows ahead what is read need not wait for copies that are asked for.
  constexpr bool kFarAhead = Z::D > 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int height = static_cast<int>(back ? z.p : z.h), width = static_cast<int>(back ? z.q : z.w);
  const int rows_all = static_cast<int>(back ? z.h : z.p), columns = static_cast<int>(back ? z.w : z.q);
  const int channels = static_cast<int>(z.c);
  const int block = static_cast<int>(blockIdx.x) / slabs;
  const int first = (static_cast<int>(blockIdx.x) - block * slabs) * Z::CB;
  const int begin = block * share, end = min(all, begin + share);
  const int top = back ? R - 1 - Z::PH : Z::PH, left = back ? Z::S - 1 - Z::PW : Z::PW;
  const Spot filters = shared_memory(), ring = filters + Z::FILTER_BYTES;
  const Spot staged = ring + Z::D * Z::ROW, gate = staged + 2 * Z::OUT_BYTES;

  Fours<Z, Z::WIDE, Z::IMAGE, Z::GROUP> pixels(ring, height, width, channels);
  Part<Z> next(begin, end, rows_all, across), part = next;
  int coming = 0, last = 0;  // rows of an image: those that are there alone
  auto start = [&] {
    coming = max(0, next.row - top), last = min(height, next.row - top + next.rows + R - 1);
    pixels.begin(in, next.image, first, coming, next.column - left, z.n, height, width, channels);
  };
  start();
  auto ask = [&](Spot stage) {
    while (__builtin_expect(coming >= last && next.left > next.rows, 0)) {
      next.next(rows_all, columns);
      start();
    }
    if (coming < last) {
      pixels.ask(stage, true);
      pixels.at += int64_t{width} * channels;
      ++coming;
    }
    copies_end();
  };

  // What this thread writes of each row of results.  The halves of 16 bytes are turned for some items, so
  // that those of a warp that write 8 bytes meet all banks.
  T* result[2];
  Spot done[2];
  unsigned puts = 0, nan = 0;  // bits of signs where something is NaN
  unsigned below = static_cast<unsigned>(columns * channels);
  keep(below);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int e = static_cast<int>(threadIdx.x) + k * Z::THREADS, m = e / (8 * Z::CHUNKS);
    done[k] = staged + static_cast<Spot>(m * Z::ITEM + e / Z::CHUNKS % 8 * Z::PITCH + e % Z::CHUNKS * 16);
  }
  auto put = [&](int turn) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if ((puts >> k & 1) != 0) {
        const uint4 is = read_16(done[k] + static_cast<Spot>(turn % 2 * Z::OUT_BYTES));
        const bool turned = ((threadIdx.x + k * Z::THREADS) / (16 * Z::CHUNKS) & 1) != 0;
        const uint4 eight = turned ? uint4{is.z, is.w, is.x, is.y} : is;
        *reinterpret_cast<uint4*>(result[k]) = eight;
        nan |= nan_signs<T>(eight);
      }
      result[k] += below;
    }
  };

  // What this lane multiplies: of two items four columns, of each the warp's channels.
  Spot mine[2];
  const T* operand[2];
  int operands[2];  // columns that there are
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = g + 8 * h, item = m < Z::ITEMS ? m : 0;
    mine[h] = ring +
              static_cast<Spot>(warp * Z::GROUP + Z::at(item / Z::J, item % Z::J * 8 + t4, Z::IMAGE));
  }
  keep(mine[0]), keep(mine[1]);
  Spot written = staged + static_cast<Spot>(warp / 2 * 16 + ((warp ^ g / 2) & 1) * 8 + g * Z::ITEM +
                                            2 * t4 * Z::PITCH);
  keep(written);
  uint2 raw[2][4] = {};
  auto take = [&](Spot stage) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int x = 0; x < Z::FOURS; ++x) {
        raw[h][x] = read_8(mine[h] + stage + static_cast<Spot>(x / 2 * Z::SPAN + x % 2 * 32));
      }
    }
  };

  gate_begin(gate, Z::WARPS);
  after_the_one_before();
  const int there_are = min(Z::CB, channels - first) * Z::RS / 8;
  for (int i = threadIdx.x; i < Z::CB * Z::RS / 8; i += Z::THREADS) {
    const bool is = i < there_are;
    copy_16(filters + static_cast<Spot>(i * 16), is ? weight + int64_t{first} * Z::RS + i * 8 : weight, is);
  }
  copies_end();
  for (int slot = 0; slot < Z::D; ++slot) ask(static_cast<Spot>(slot * Z::ROW));
  no_fours<Z>(ring);
  float bias[4] = {};
  if constexpr (After::kPerChannel) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (first + warp * 4 < channels) bias[c] = wide(static_cast<const T*>(z.source)[first + warp * 4 + c]);
    }
  }
  wait_copies<Z::D>();  // rows come meanwhile
  __syncthreads();
  unsigned band[4][R][1][2];
  bands_of<Z, back>(band, filters);
  wait_copies<Z::D - 1>();
  __syncthreads();
  take(0);
  wait_copies<Z::D - 2>();
  gate_arrive(gate);

  auto after = [](Spot at) {
    return at < static_cast<Spot>((Z::D - 1) * Z::ROW) ? at + Z::ROW : 0u;
  };
  Spot stage = 0, free = 0;
  int turn = 0;
  bool free_is = true;  // a row that was there is in registers
#pragma unroll 1
  for (; part.rows > 0; part.next(rows_all, columns)) {
    puts = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int e = static_cast<int>(threadIdx.x) + k * Z::THREADS, m = e / (8 * Z::CHUNKS);
      const int column = part.column + m % Z::J * 8 + e / Z::CHUNKS % 8, c = first + e % Z::CHUNKS * 8;
      const int64_t n = int64_t{part.image} + m / Z::J;
      puts |= (m < Z::ITEMS && n < z.n && column < columns && c < channels ? 1u : 0u) << k;
      result[k] = out + ((n * rows_all + part.row) * columns + column) * channels + c;
    }
    if constexpr (After::kWhole) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = g + 8 * h, item = m < Z::ITEMS ? m : 0;
        const int column = part.column + item % Z::J * 8 + 2 * t4, c = first + warp * 4;
        const int64_t n = int64_t{part.image} + item / Z::J;
        operands[h] = m < Z::ITEMS && n < z.n && c < channels ? columns - column : 0;
        operand[h] = static_cast<const T*>(z.source) +
                     ((n * rows_all + part.row) * columns + column) * channels + c;
      }
    }
    float sums[4][R][4] = {};
    // Results of which the sums are done.
    auto write_row = [&](int turn, int of) {
      const Spot at = written + static_cast<Spot>(turn % 2 * Z::OUT_BYTES);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float operand_of[4] = {bias[0], bias[1], bias[2], bias[3]};
        if constexpr (After::kWhole) {
          uint2 bits{0, 0};
          if (i % 2 < operands[i / 2]) {
            bits = __ldg(reinterpret_cast<const uint2*>(operand[i / 2] + i % 2 * channels));
          }
          const float2 low = both_of<T>(bits.x), high = both_of<T>(bits.y);
          operand_of[0] = low.x, operand_of[1] = low.y, operand_of[2] = high.x, operand_of[3] = high.y;
        }
        float value[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) value[c] = After::of(sums[c][of][i], operand_of[c]);
        write_8(at + static_cast<Spot>(i / 2 * 8 * Z::ITEM + i % 2 * Z::PITCH),
                uint2{two_of<T>(value[0], value[1]), two_of<T>(value[2], value[3])});
      }
      if constexpr (After::kWhole) {
#pragma unroll
        for (int h = 0; h < 2; ++h) operand[h] += below;
      }
    };
    // A step's row of the image; those before the first are left out.  Each result meets one at least, so
    // sums that begin below the last are no result's.
    const int base = part.row - top, steps = part.rows + R - 1, skipped = max(0, -base);
#pragma unroll 1
    for (int t0 = skipped; t0 < steps; t0 += R) {
#pragma unroll
      for (int d = 0; d < R; ++d) {
        const int t = t0 + d;
        if (t >= steps) break;
        const bool is = base + t < height;
        gate_pass(gate, turn);
        auto ask_next = [&] {
          if (free_is) {
            ask(free);
            free = after(free);
          }
          free_is = is;
        };
        if constexpr (!kFarAhead) ask_next();
        if (t >= R) put(turn - 1);
        unsigned a[4][4];
        if (is) {
          stage = after(stage);
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            const int c = i / 4, h = i % 2, x = i / 2 % 2 * 2;
            a[c][i % 4] = pair_of(raw[h][x], raw[h][x + 1], c);
          }
          take(stage);
        }
        if constexpr (kFarAhead) ask_next();
        auto products = [&](int r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            float(&sum)[4] = sums[c][(d - r + R) % R];
            if (r == 0) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
            multiply_16(sum, a[c], band[c][r][0][0], band[c][r][0][1], T{});
          }
        };
        if (is) products(R - 1);
        if (t >= R - 1) write_row(turn, (d + 1) % R);
        wait_copies<Z::D - 2>();
        gate_arrive(gate);
        ++turn;
#pragma unroll
        for (int r = R - 2; r >= 0; --r) {
          if (is) products(r);  // others need not wait for these
        }
      }
    }
    gate_pass(gate, turn);
    put(turn - 1);
    if ((nan & 0x80008000u) == 0) continue;
    nan = 0;
    for (int e = threadIdx.x; e < 2 * Z::THREADS; e += Z::THREADS) {
      if ((puts >> e / Z::THREADS & 1) == 0) continue;
      const int m = e / (8 * Z::CHUNKS), c = first + e % Z::CHUNKS * 8;
      const int column = part.column + m % Z::J * 8 + e / Z::CHUNKS % 8;
      const int64_t n = int64_t{part.image} + m / Z::J;
      for (int row = part.row; row < part.row + part.rows; ++row) {
        mend<Z, After, back>(out, ((n * rows_all + row) * columns + column) * channels + c, in, weight, z,
                             1, 1, n, row, column, c);
      }
    }
  }
}

template <typename Z, typename After, bool back>
int shares(const WideCall& z, cudaStream_t stream) {
  using T = typename Z::T;
  const int64_t rows = back ? z.h : z.p;
  const int slabs = static_cast<int>(ceil_of64(z.c, Z::CB));
  const int across = static_cast<int>(ceil_of64(back ? z.w : z.q, 8 * Z::J));
  const int64_t tiles = ceil_of64(z.n, Z::I) * across;
  if (!countable<Z>(z, tiles, rows)) return finished(cudaErrorInvalidValue);
  const int all = static_cast<int>(tiles * rows);
  const int share = share_of(tiles, static_cast<int>(rows), slabs, Z::F, Z::R - 1, Z::R - 1 - Z::PH);
  return finished(launch_with(shares_image<Z, After, back>,
                              dim3(static_cast<unsigned>(ceil_of(all, share)) * slabs), Z::THREADS,
                              Z::BYTES, stream, static_cast<const T*>(z.first),
                              static_cast<const T*>(z.second), static_cast<T*>(z.out), z, slabs, across,
                              all, share));
}

template <typename T, typename Out, typename After, int... numbers>
int depthwise_shares_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  return shares<Shares<T, numbers...>, After, false>(wide_call(call), stream);
}

template <typename T, typename Out, typename After, int... numbers>
int depthwise_shares_dgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  return shares<Shares<T, numbers...>, After, true>(wide_call(call), stream);
}

}  // namespace
