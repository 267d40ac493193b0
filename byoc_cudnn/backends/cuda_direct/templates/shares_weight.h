// ---- depthwise on tensor cores, stride 1, in equal shares: the gradient of the filters ----------------------
//
// Products as in `bands_weight.h`; a block keeps its sums through all its tiles.

namespace {

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS, Z::F)
    shares_weight(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                  float* __restrict__ parts, WideCall z, int slabs, int across, int all, int share) {
  using T = typename Z::T;
  constexpr int R = Z::R;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int height = static_cast<int>(z.h), width = static_cast<int>(z.w);
  const int rows_all = static_cast<int>(z.p), columns = static_cast<int>(z.q);
  const int channels = static_cast<int>(z.c);
  const int block = static_cast<int>(blockIdx.x) / slabs;
  const int first = (static_cast<int>(blockIdx.x) - block * slabs) * Z::CB;
  const int begin = block * share, end = min(all, begin + share);
  const Spot ring = shared_memory(), gate = ring + Z::RING_BYTES;

  Fours<Z, Z::WIDE, Z::IMAGE, Z::GROUP> pixels(ring, height, width, channels);
  Fours<Z, 8 * Z::J, Z::GRAD_IMAGE, Z::GRAD_GROUP> results(ring + Z::ROW, rows_all, columns, channels);
  // Steps of a part: after its last row, or the image's, none is needed.
  auto steps_of = [&](const Part<Z>& part) {
    return max(0, min(part.rows + R - 1, height + Z::PH - part.row));
  };
  Part<Z> next(begin, end, rows_all, across), part = next;
  int coming = 0, steps = 0;  // the step whose rows are asked for next
  auto start = [&] {
    coming = 0, steps = steps_of(next);
    pixels.begin(image, next.image, first, next.row - Z::PH, next.column - Z::PW, z.n, height, width,
                 channels);
    results.begin(grad, next.image, first, next.row, next.column, z.n, rows_all, columns, channels);
  };
  start();
  auto ask = [&](Spot stage) {
    while (__builtin_expect(coming >= steps && next.left > next.rows, 0)) {
      next.next(rows_all, columns);
      start();
    }
    if (coming < steps) {
      if (next.row - Z::PH + coming >= 0) pixels.ask(stage, true);
      results.ask(stage, coming < next.rows);
      pixels.at += int64_t{width} * channels;
      results.at += int64_t{columns} * channels;
      ++coming;
    }
    copies_end();
  };

  // What this lane multiplies, as in `bands_weight`.
  // Often the four are equally far apart.
  constexpr bool even = Z::ITEMS == 16 && (4 % Z::J == 0 || Z::I == 1);
  constexpr int apart = 4 % Z::J == 0 ? 4 / Z::J * Z::IMAGE : 4 * Z::SPAN;
  constexpr int grad_apart = 4 % Z::J == 0 ? 4 / Z::J * Z::GRAD_IMAGE : 4 * Z::SPAN;
  Spot of_image[4], of_grad[4];
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const int m = t4 + 4 * x, item = m < Z::ITEMS ? m : 0, column = item % Z::J * 8 + g;
    of_image[x] = ring + static_cast<Spot>(warp * Z::GROUP + Z::at(item / Z::J, column, Z::IMAGE));
    of_grad[x] = ring + static_cast<Spot>(Z::ROW + warp * Z::GRAD_GROUP +
                                          Z::at(item / Z::J, column, Z::GRAD_IMAGE));
    if (x == 0 || !even) {
      keep(of_image[x]), keep(of_grad[x]);
    } else {
      of_image[x] = of_image[0] + static_cast<Spot>(x * apart);
      of_grad[x] = of_grad[0] + static_cast<Spot>(x * grad_apart);
    }
  }
  uint2 raw[2][4], below[4];
  auto take = [&](Spot stage) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      raw[0][x] = read_8(of_image[x] + stage);
      raw[1][x] = read_8(of_image[x] + stage + Z::SPAN);
      below[x] = read_8(of_grad[x] + stage);
      if (Z::ITEMS < 16 && t4 + 4 * x >= Z::ITEMS) below[x] = uint2{0, 0};
    }
  };

  gate_begin(gate, Z::WARPS);
  after_the_one_before();
  for (int slot = 0; slot < Z::D; ++slot) ask(static_cast<Spot>(slot * Z::STAGE));
  wait_copies<Z::D - 1>();
  __syncthreads();
  take(0);
  wait_copies<Z::D - 2>();
  gate_arrive(gate);
  float sums[4][R][4] = {};
  Spot stage = 0;
  int turn = 0;
#pragma unroll 1
  for (; part.rows > 0; part.next(rows_all, columns)) {
    const int many = steps_of(part), none = Z::PH - part.row;
    unsigned b[4][R][2] = {};
#pragma unroll 1
    for (int t = 0; t < many; t += R) {
#pragma unroll
      for (int d = 0; d < R; ++d) {
        if (t + d >= many) break;
        gate_pass(gate, turn++);
        const Spot was = stage;  // the rows that were there are in registers
        if constexpr (!even) ask(was);
        stage = stage < static_cast<Spot>((Z::D - 1) * Z::STAGE) ? stage + Z::STAGE : 0;
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
        take(stage);
        // What is read need not wait for copies that are asked for; with many addresses they come first.
        if constexpr (even) ask(was);
        wait_copies<Z::D - 2>();
        gate_arrive(gate);  // the products are nobody else's
        if (t + d < none) continue;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            multiply_16(sums[c][r], a[c], b[c][(d - r + R) % R][0], b[c][(d - r + R) % R][1], T{});
          }
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();
  const int channel = first + warp * 4 + lane / 8;
  diagonals<Z>(sums, ring, parts + (int64_t{block} * z.c + channel) * Z::RS, channel < channels);
}

template <typename T, typename Out, typename After, int... numbers>
int depthwise_shares_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Shares<T, numbers...>;
  const WideCall z = wide_call(call);
  const int slabs = static_cast<int>(ceil_of64(z.c, Z::CB)), rows = static_cast<int>(z.p);
  const int across = static_cast<int>(ceil_of64(z.q, 8 * Z::J));
  const int64_t tiles = ceil_of64(z.n, Z::I) * across;
  if (!countable<Z>(z, tiles, rows)) return finished(cudaErrorInvalidValue);
  const int all = static_cast<int>(tiles * rows);
  const int share = share_of(tiles, rows, slabs, Z::F, Z::R - 1, Z::PH), many = ceil_of(all, share);
  if (call.wanted != nullptr) return *call.wanted = int64_t{many} * z.c * Z::RS * 4, 0;
  const cudaError_t error = launch_with(
      shares_weight<Z>, dim3(static_cast<unsigned>(many) * slabs), Z::THREADS, Z::WEIGHT_BYTES, stream,
      static_cast<const T*>(z.first), static_cast<const T*>(z.second), static_cast<float*>(z.workspace), z,
      slabs, across, all, share);
  return finished(error != cudaSuccess ? error : sum_bands<Z, Out>(z, many, stream));
}

}  // namespace
