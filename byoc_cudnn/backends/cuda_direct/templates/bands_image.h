// ---- depthwise on tensor cores, stride 1: the result, and the gradient of the image -----------------------
//
// A product's rows are 16 items, its terms 16 columns of the image, its columns 8 of the result.  A row of
// the image is multiplied with the bands of all R rows of a filter, for the R rows of results that it
// reaches, whose sums are in registers.

namespace {

// The bands of a warp's channels: what this lane multiplies of each row of the filters.  A product's
// terms 2t and 2t + 1 are columns t and t + 4, terms 2t + 8 and 2t + 9 columns t + 8 and t + 12.
template <typename Z, bool back>
__device__ inline void bands_of(unsigned (&to)[4][Z::R][Z::ST][2], Spot filters) {
  const int lane = threadIdx.x % 32, first = (lane % 4 - lane / 4) * Z::ST;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const Spot mine = filters + static_cast<Spot>((threadIdx.x / 32 * 4 + c) * Z::RS * 2);
#pragma unroll
    for (int i = 0; i < Z::R * Z::ST; ++i) {
      const int r = i / Z::ST;
      unsigned taps[4] = {};
#pragma unroll
      for (int x = 0; x < Z::FOURS; ++x) {
        const int s = first + 4 * x * Z::ST + i % Z::ST;
        const int tap = back ? Z::RS - 1 - (r * Z::S + s) : r * Z::S + s;
        if (s >= 0 && s < Z::S) taps[x] = read_2(mine + static_cast<Spot>(tap * 2));
      }
      to[c][r][i % Z::ST][0] = taps[0] | taps[1] << 16;
      to[c][r][i % Z::ST][1] = taps[2] | taps[3] << 16;
    }
  }
}

template <typename Z, typename After, bool back>
__global__ void __launch_bounds__(Z::THREADS, Z::F)
    bands_image(const typename Z::T* __restrict__ in, const typename Z::T* __restrict__ weight,
                typename Z::T* __restrict__ out, WideCall z, int slabs, int across, int down,
                int chunk) {
  using T = typename Z::T;
  constexpr int R = Z::R, A = Z::A, ST = Z::ST;
  constexpr int late = ST > 1;  // a step reads of its own stage what is not yet in registers
  static_assert(!back || ST == 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int height = static_cast<int>(back ? z.p : z.h), width = static_cast<int>(back ? z.q : z.w);
  const int rows_all = static_cast<int>(back ? z.h : z.p), columns = static_cast<int>(back ? z.w : z.q);
  const int channels = static_cast<int>(z.c);
  const Place place = Place::of<Z>(slabs, across, down, chunk);
  const int rows = min(chunk, rows_all - place.row), steps = rows + A - 1;
  const int top = back ? R - 1 - Z::PH : Z::PH, left = back ? Z::S - 1 - Z::PW : Z::PW;
  const Spot filters = shared_memory(), ring = filters + Z::FILTER_BYTES;
  const Spot staged = ring + Z::D * ST * Z::ROW, gate = staged + 2 * Z::OUT_BYTES;

  Copied<Z, Z::WIDE, Z::IMAGE> copied(in, ring, place, place.row * ST - top, place.column * ST - left,
                                     z.n, height, width, channels);
  int coming = place.row * ST - top;  // the row that is asked for next
  const int end = min(height, coming + (rows - 1) * ST + R);
  auto ask = [&](int slot) {
#pragma unroll
    for (int j = 0; j < ST; ++j, ++coming) {
      copied.ask(static_cast<Spot>((slot * ST + j) * Z::ROW), coming >= 0 && coming < end,
                 int64_t{width} * channels);
    }
    copies_end();
  };

  // What this thread writes of each row of results.
  T* result[2];
  Spot done[2];
  unsigned puts = 0;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int e = static_cast<int>(threadIdx.x) + k * Z::THREADS, part = e % Z::CHUNKS;
    const int q = e / Z::CHUNKS % 8, m = e / (8 * Z::CHUNKS);
    const int column = place.column + m % Z::J * 8 + q, c = place.first + part * 8;
    const int64_t n = place.image + m / Z::J;
    puts |= (m < Z::I * Z::J && n < z.n && column < columns && c < channels ? 1u : 0u) << k;
    done[k] = staged + static_cast<Spot>(m * Z::ITEM + q * Z::PITCH + part * 16);
    result[k] = out + ((n * rows_all + place.row) * columns + column) * channels + c;
  }
  bool nan = false;
  auto put = [&](int half) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if ((puts >> k & 1) != 0) {
        const uint4 eight = read_16(done[k] + static_cast<Spot>(half * Z::OUT_BYTES));
        *reinterpret_cast<uint4*>(result[k]) = eight;
        nan |= has_nan<T>(eight);
      }
      result[k] += int64_t{columns} * channels;
    }
  };

  // What this lane multiplies: of two items four columns, of each the warp's channels.
  Spot mine[2];
  const T* operand[2];
  int operands[2];  // columns that there are
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int m = g + 8 * h, item = m < Z::I * Z::J ? m : 0;
    mine[h] = ring + static_cast<Spot>(warp * 8) +
              static_cast<Spot>(Z::template at<Z::IMAGE>(item / Z::J, item % Z::J * Z::SPAN + ST * t4));
    if constexpr (After::kWhole) {
      const int column = place.column + item % Z::J * 8 + 2 * t4, c = place.first + warp * 4;
      const int64_t n = place.image + item / Z::J;
      operands[h] = m < Z::I * Z::J && n < z.n && c < channels ? columns - column : 0;
      operand[h] = static_cast<const T*>(z.source) +
                   ((n * rows_all + place.row) * columns + column) * channels + c;
    }
  }
  uint2 raw[ST][2][4] = {};
  auto take = [&](int row) {
#pragma unroll
    for (int e = 0; e < ST; ++e) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int x = 0; x < Z::FOURS; ++x) {
          raw[e][h][x] = read_8(mine[h] + static_cast<Spot>(row * Z::ROW + x / 2 * Z::SPAN_BYTES +
                                                            (x % 2 * 4 * ST + e) * Z::PITCH));
        }
      }
    }
  };

  gate_begin(gate, Z::WARPS);
  after_the_one_before();
  const int there_are = min(Z::CB, channels - place.first) * Z::RS / 8;
  for (int i = threadIdx.x; i < Z::CB * Z::RS / 8; i += Z::THREADS) {
    const bool is = i < there_are;
    copy_16(filters + static_cast<Spot>(i * 16),
            is ? weight + int64_t{place.first} * Z::RS + i * 8 : weight, is);
  }
  copies_end();
  for (int slot = 0; slot < Z::D - late; ++slot) ask(slot);
  no_columns<Z>(ring);
  float bias[4] = {};
  if constexpr (After::kPerChannel) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (place.first + warp * 4 < channels) {
        bias[c] = wide(static_cast<const T*>(z.source)[place.first + warp * 4 + c]);
      }
    }
  }
  wait_copies<Z::D - late>();  // rows come meanwhile
  __syncthreads();
  unsigned band[4][R][ST][2];
  bands_of<Z, back>(band, filters);
  wait_copies<Z::D - 1 - late>();
  __syncthreads();
  take(0);
  wait_copies<Z::D - 2 - late>();
  gate_arrive(gate);
  float sums[4][A][4] = {};
  // Results of which the sums are done.
  auto write_row = [&](int half, int of) {
    const Spot at = staged + static_cast<Spot>(half * Z::OUT_BYTES + warp * 8);
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
      write_8(at + static_cast<Spot>((g + i / 2 * 8) * Z::ITEM + (2 * t4 + i % 2) * Z::PITCH),
              uint2{two_of<T>(value[0], value[1]), two_of<T>(value[2], value[3])});
    }
    if constexpr (After::kWhole) {
#pragma unroll
      for (int h = 0; h < 2; ++h) operand[h] += int64_t{columns} * channels;
    }
  };
  int slot = 0, free = late ? Z::D - 1 : 0;
#pragma unroll 1
  for (int begin = 0; begin < steps; begin += A) {
#pragma unroll
    for (int d = 0; d < A; ++d) {
      const int t = begin + d;
      if (t >= steps) break;
      gate_pass(gate, t);
      ask(free);
      free = free + 1 < Z::D ? free + 1 : 0;
      if (t >= A) put((t - 1) & 1);
#pragma unroll
      for (int j = 0; j < ST; ++j) {
        unsigned a[ST][4][4];
#pragma unroll
        for (int i = 0; i < ST * 16; ++i) {
          const int e = i / 16, c = i / 4 % 4, h = i % 2, x = i / 2 % 2 * 2;
          a[e][c][i % 4] = pair_of(raw[e][h][x], raw[e][h][x + 1], c);
        }
        if (j == ST - 1) slot = slot + 1 < Z::D ? slot + 1 : 0;
        take(slot * ST + (j + 1) % ST);
#pragma unroll
        for (int over = A - 1; over >= 0; --over) {
          const int r = over * ST + j;
#pragma unroll
          for (int e = 0; e < ST; ++e) {
            if (r >= R) continue;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              float(&sum)[4] = sums[c][(d - over + A) % A];
              if (r == 0 && e == 0) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
              multiply_16(sum, a[e][c], band[c][r][e][0], band[c][r][e][1], T{});
            }
          }
          // A row is done; others need not wait for the products of those that are not.
          if (over < A - 1 || j < ST - 1) continue;
          if (t >= A - 1) write_row(t & 1, (d + 1) % A);
          wait_copies<Z::D - 2 - late>();
          gate_arrive(gate);
        }
      }
    }
  }
  gate_pass(gate, steps);
  put((steps - 1) & 1);
  if (!nan) return;
  for (int e = threadIdx.x; e < 2 * Z::THREADS; e += Z::THREADS) {
    if ((puts >> e / Z::THREADS & 1) == 0) continue;
    const int m = e / (8 * Z::CHUNKS), c = place.first + e % Z::CHUNKS * 8;
    const int column = place.column + m % Z::J * 8 + e / Z::CHUNKS % 8;
    const int64_t n = place.image + m / Z::J;
    for (int row = place.row; row < place.row + rows; ++row) {
      mend<Z, After, back>(out, ((n * rows_all + row) * columns + column) * channels + c, in, weight, z,
                           1, 1, n, row, column, c);
    }
  }
}

template <typename Z, typename After, bool back>
int bands(const WideCall& z, cudaStream_t stream) {
  using T = typename Z::T;
  const int rows = static_cast<int>(back ? z.h : z.p);
  const int slabs = static_cast<int>(ceil_of64(z.c, Z::CB));
  const int across = static_cast<int>(ceil_of64(back ? z.w : z.q, 8 * Z::J));
  const int64_t beside = ceil_of64(z.n, Z::I) * slabs * across;
  const int chunk = band_rows(beside, rows, Z::A - 1), down = ceil_of(rows, chunk);
  if (beside * down > kMostTiles) return finished(cudaErrorInvalidValue);
  return finished(launch_with(bands_image<Z, After, back>, dim3(static_cast<unsigned>(beside * down)),
                              Z::THREADS, Z::BYTES, stream, static_cast<const T*>(z.first),
                              static_cast<const T*>(z.second), static_cast<T*>(z.out), z, slabs,
                              across, down, chunk));
}

template <typename T, typename Out, typename After, int... numbers>
int depthwise_bands_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  return bands<Bands<T, numbers...>, After, false>(wide_call(call), stream);
}

template <typename T, typename Out, typename After, int... numbers>
int depthwise_bands_dgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  return bands<Bands<T, numbers...>, After, true>(wide_call(call), stream);
}

}  // namespace
