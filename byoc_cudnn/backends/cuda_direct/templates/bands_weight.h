// ---- depthwise on tensor cores, stride 1: the gradient of the filters ---------------------------------------
//
// A product's rows are 16 columns of the image, its columns 8 of the gradient, its terms 16 items: for each
// of the R rows of a filter it is added to sums that stay in registers, and a tap is at last a diagonal of
// them.  A block's are a part in float32, and the parts are added in order.

namespace {

// A block's part: of the sums of a warp's channels and a row of the filters the diagonals, `part` of this
// lane's channel where there `is` one.
template <typename Z>
__device__ inline void diagonals(const float (&sums)[4][Z::R][4], Spot ring, float* part, bool is) {
  const int lane = threadIdx.x % 32, g = lane / 4, t4 = lane % 4, c = lane / 8;
  const Spot mine = ring + static_cast<Spot>(threadIdx.x / 32 * 2048);
#pragma unroll
  for (int r = 0; r < Z::R; ++r) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = i / 4 * 128 + (g + i / 2 % 2 * 8) * 8 + 2 * t4 + i % 2;
      write_f(mine + static_cast<Spot>(at * 4), sums[i / 4][r][i % 4]);
    }
    __syncwarp();
    for (int s = lane % 8; s < Z::S; s += 8) {
      float sum = 0;
#pragma unroll
      for (int q = 0; q < 8; ++q) {
        sum += read_f(mine + static_cast<Spot>((c * 128 + (q + s) * 8 + q) * 4));
      }
      if (is) part[r * Z::S + s] = sum;
    }
    __syncwarp();
  }
}

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS, Z::F)
    bands_weight(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                 float* __restrict__ parts, WideCall z, int slabs, int across, int down, int chunk) {
  using T = typename Z::T;
  constexpr int R = Z::R;
  static_assert(Z::ST == 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int height = static_cast<int>(z.h), width = static_cast<int>(z.w);
  const int columns = static_cast<int>(z.q), channels = static_cast<int>(z.c);
  const Place place = Place::of<Z>(slabs, across, down, chunk);
  const int rows = min(chunk, static_cast<int>(z.p) - place.row), steps = rows + R - 1;
  const Spot ring = shared_memory(), gate = ring + Z::RING_BYTES;
  Copied<Z, Z::WIDE, Z::IMAGE> pixels(image, ring, place, place.row - Z::PH, place.column - Z::PW, z.n,
                                     height, width, channels);
  Copied<Z, 8 * Z::J, Z::GRAD_IMAGE> results(grad, ring + Z::ROW, place, place.row, place.column, z.n,
                                             static_cast<int>(z.p), columns, channels);
  int coming = 0;  // the step whose rows are asked for next
  auto ask = [&](int slot) {
    const Spot stage = static_cast<Spot>(slot * Z::STAGE);
    const int row = place.row - Z::PH + coming;
    pixels.ask(stage, row >= 0 && row < height && coming < steps, int64_t{width} * channels);
    results.ask(stage, coming < rows, int64_t{columns} * channels);
    ++coming;
    copies_end();
  };

  // What this lane multiplies: of the items t, t + 4, t + 8 and t + 12, which are a product's terms 2t,
  // 2t + 1, 2t + 8 and 2t + 9, columns g and g + 8 of the image and g of the gradient.
  Spot of_image[4], of_grad[4];
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const int m = t4 + 4 * x, item = m < Z::I * Z::J ? m : 0, column = item % Z::J * 8 + g;
    of_image[x] = ring + static_cast<Spot>(warp * 8) +
                  static_cast<Spot>(Z::template at<Z::IMAGE>(item / Z::J, column));
    of_grad[x] = ring + static_cast<Spot>(Z::ROW + warp * 8) +
                 static_cast<Spot>(Z::template at<Z::GRAD_IMAGE>(item / Z::J, column));
  }
  uint2 raw[2][4], below[4];
  auto take = [&](int slot) {
    const Spot stage = static_cast<Spot>(slot * Z::STAGE);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      raw[0][x] = read_8(of_image[x] + stage);
      raw[1][x] = read_8(of_image[x] + stage + Z::SPAN_BYTES);
      below[x] = read_8(of_grad[x] + stage);
      if (Z::I * Z::J < 16 && t4 + 4 * x >= Z::I * Z::J) below[x] = uint2{0, 0};
    }
  };

  gate_begin(gate, Z::WARPS);
  after_the_one_before();
  for (int slot = 0; slot < Z::D; ++slot) ask(slot);
  wait_copies<Z::D - 1>();
  __syncthreads();
  take(0);
  wait_copies<Z::D - 2>();
  gate_arrive(gate);
  unsigned b[4][R][2] = {};
  float sums[4][R][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int begin = 0; begin < steps; begin += R) {
#pragma unroll
    for (int d = 0; d < R; ++d) {
      if (begin + d >= steps) break;
      gate_pass(gate, begin + d);
      ask(slot);  // the rows that were there are in registers
      slot = slot + 1 < Z::D ? slot + 1 : 0;
      unsigned a[4][4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          a[c][2 * i] = pair_of(raw[0][2 * i], raw[0][2 * i + 1], c);
          a[c][2 * i + 1] = pair_of(raw[1][2 * i], raw[1][2 * i + 1], c);
          b[c][d][i] = pair_of(below[2 * i], below[2 * i + 1], c);
        }
      }
      take(slot);
      wait_copies<Z::D - 2>();
      gate_arrive(gate);  // the products are nobody else's
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          multiply_16(sums[c][r], a[c], b[c][(d - r + R) % R][0], b[c][(d - r + R) % R][1], T{});
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();
  const int channel = place.first + warp * 4 + lane / 8;
  diagonals<Z>(sums, ring, parts + (int64_t{blockIdx.x / slabs} * z.c + channel) * Z::RS, channel < channels);
}

// As `sum_of_parts`; and where products with what lies beside an image, or beyond what a block has of a
// gradient, made NaN, the sum is computed again, from what there is only.
template <typename Z, typename Out>
__global__ void __launch_bounds__(kBeside * kTurns)
    sum_of_bands(const float* __restrict__ parts, Out* __restrict__ out, WideCall z, int many) {
  using T = typename Z::T;
  after_the_one_before();
  const int column = threadIdx.x % kBeside, turn = threadIdx.x / kBeside;
  const int64_t i = int64_t{blockIdx.x} * kBeside + column, count = z.c * Z::RS;
  const Spot sums = shared_memory(), mine = sums + static_cast<Spot>(threadIdx.x * 4);
  auto all = [&](float sum) {
    write_f(mine, sum);
    __syncthreads();
    sum = read_f(sums + static_cast<Spot>(column * 4));
#pragma unroll
    for (int j = 1; j < kTurns; ++j) sum += read_f(sums + static_cast<Spot>((j * kBeside + column) * 4));
    __syncthreads();
    return sum;
  };
  float sum = 0;
  if (i < count) {
#pragma unroll 4
    for (int part = turn; part < many; part += kTurns) sum += parts[part * count + i];
  }
  float is = all(sum);
  sum = 0;
  if (is != is) {
    const int64_t channel = i / Z::RS, tap = i % Z::RS;
    const int r = static_cast<int>(tap) / Z::S - Z::PH, s = static_cast<int>(tap) % Z::S - Z::PW;
    const auto *const grad = static_cast<const T*>(z.first), *image = static_cast<const T*>(z.second);
    for (int64_t line = turn; line < z.n * z.p; line += kTurns) {
      const int64_t n = line / z.p, h = line % z.p + r;
      if (h < 0 || h >= z.h) continue;
      for (int64_t q = 0; q < z.q; ++q) {
        if (q + s < 0 || q + s >= z.w) continue;
        sum += wide(image[((n * z.h + h) * z.w + q + s) * z.c + channel]) *
               wide(grad[(line * z.q + q) * z.c + channel]);
      }
    }
  }
  sum = all(sum);
  if (turn == 0 && i < count) out[i] = narrow<Out>(is != is ? sum : is);
}

template <typename Z, typename Out>
cudaError_t sum_bands(const WideCall& z, int many, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_of64(z.c * Z::RS, kBeside));
  return launch_with(sum_of_bands<Z, Out>, dim3(blocks), kBeside * kTurns, kBeside * kTurns * 4, stream,
                     static_cast<const float*>(z.workspace), static_cast<Out*>(z.out), z, many);
}

template <typename T, typename Out, typename After, int... numbers>
int depthwise_bands_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Bands<T, numbers...>;
  const WideCall z = wide_call(call);
  const int slabs = static_cast<int>(ceil_of64(z.c, Z::CB)), rows = static_cast<int>(z.p);
  const int across = static_cast<int>(ceil_of64(z.q, 8 * Z::J));
  const int64_t beside = ceil_of64(z.n, Z::I) * slabs * across;
  const int chunk = band_rows(beside, rows, Z::R - 1), down = ceil_of(rows, chunk);
  const int64_t many = beside / slabs * down;
  if (call.wanted != nullptr) return *call.wanted = many * z.c * Z::RS * 4, 0;
  if (beside * down > kMostTiles) return finished(cudaErrorInvalidValue);
  const cudaError_t error = launch_with(
      bands_weight<Z>, dim3(static_cast<unsigned>(beside * down)), Z::THREADS, Z::WEIGHT_BYTES, stream,
      static_cast<const T*>(z.first), static_cast<const T*>(z.second), static_cast<float*>(z.workspace), z,
      slabs, across, down, chunk);
  return finished(error != cudaSuccess ? error : sum_bands<Z, Out>(z, static_cast<int>(many), stream));
}

}  // namespace
