// ---- dense convolutions of volumes with 32 channels: the gradient of the filters ----------------------------
//
// A product's rows are 16 filters, its columns 8 channels, its terms 16 voxels of a row.  A warp has such a
// block of the gradient for all taps in registers, from the first plane of the block's share to the last: a
// row of the result's gradient is loaded once for all of them, and a row of the image once for R of them.

namespace {

template <typename Z>
struct PlanesWeight {
  static constexpr int GRAD = Z::TP * Z::TQ * kPixel;
  static constexpr int BYTES = Z::RING * Z::PLANE + 2 * GRAD;
};

template <typename Z>
__global__ void __launch_bounds__(Z::THREADS, 1)
    planes_weight(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                  float* __restrict__ parts, Volume data, Volume made, Columns columns) {
  using T = typename Z::T;
  using W = PlanesWeight<Z>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int filters = blockIdx.y * kChannels, channels = blockIdx.z * kChannels;
  const int half = warp % 2, quarter = warp / 2;  // of the filters, of the channels
  const Spot ring = shared_memory(), grads = ring + Z::RING * Z::PLANE;
  // Of the 16 voxels and 16 filters that a lane tells the place of.
  const Spot of_grad = piece_of(lane / 16 * 8 + lane % 8, half * 2 + lane / 8 % 2);
  Spot of_image[Z::S];  // of a tap across, and of the next one in the upper half of the lanes
#pragma unroll
  for (int s = 0; s < Z::S; ++s) {
    const int tap = s + 1 < Z::S ? s + lane / 16 : s;
    of_image[s] = piece_of(lane % 16 + tap, quarter);
  }
  float sums[Z::DEPTH][Z::R][Z::S][4] = {};
  after_the_one_before();
  int64_t at = columns.all * blockIdx.x / gridDim.x;
  const int64_t end = columns.all * (blockIdx.x + 1) / gridDim.x;
  while (at < end) {
    const int64_t column = at / columns.planes, n = column / (columns.down * columns.across);
    const int tile = static_cast<int>(column % (columns.down * columns.across));
    const int first = static_cast<int>(at % columns.planes);
    const int row = tile / columns.across * Z::TP, left = tile % columns.across * Z::TQ;
    const int64_t rest = end - at;
    const int many = rest < columns.planes - first ? static_cast<int>(rest) : columns.planes - first;
    auto read_image = [&](int z) {
      read_plane<Z::ROWS, Z::TQ + Z::S - 1, Z::COLUMNS, Z::THREADS>(
          ring + static_cast<Spot>((z - first) % Z::RING * Z::PLANE), image, data, n, z - Z::PF,
          row - Z::PH, left - Z::PW, channels);
    };
    auto read_grad = [&](int z) {
      read_plane<Z::TP, Z::TQ, Z::TQ, Z::THREADS>(grads + static_cast<Spot>((z - first) % 2 * W::GRAD), grad,
                                                  made, n, z, row, left, filters);
    };
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < Z::DEPTH; ++t) read_image(first + t);
    read_grad(first);
    copies_end();
#pragma unroll 1
    for (int z = first; z < first + many; ++z) {
      wait_copies<0>();
      __syncthreads();
      if (z + 1 < first + many) {
        read_image(z + Z::DEPTH);
        read_grad(z + 1);
      }
      copies_end();
      Spot planes[Z::DEPTH];
#pragma unroll
      for (int t = 0; t < Z::DEPTH; ++t) {
        planes[t] = ring + static_cast<Spot>((z - first + t) % Z::RING * Z::PLANE);
      }
      const Spot of_plane = grads + static_cast<Spot>((z - first) % 2 * W::GRAD) + of_grad;
#pragma unroll 1
      for (int q = 0; q < Z::TQ; q += 16) {
        unsigned a[Z::R][4];
#pragma unroll
        for (int h = 0; h < Z::ROWS; ++h) {
          if (h < Z::TP) matrices_4<true>(a[h % Z::R], of_plane + static_cast<Spot>((h * Z::TQ + q) * kPixel));
#pragma unroll
          for (int t = 0; t < Z::DEPTH; ++t) {
            const Spot line = planes[t] + static_cast<Spot>((h * Z::COLUMNS + q) * kPixel);
#pragma unroll
            for (int s = 0; s < Z::S; s += 2) {
              unsigned b[4];
              matrices_4<true>(b, line + of_image[s]);
#pragma unroll
              for (int r = 0; r < Z::R; ++r) {
                if (h - r < 0 || h - r >= Z::TP) continue;
                multiply_16(sums[t][r][s], a[(h - r) % Z::R], b[0], b[1], T{});
                if (s + 1 < Z::S) multiply_16(sums[t][r][s + 1], a[(h - r) % Z::R], b[2], b[3], T{});
              }
            }
          }
        }
      }
    }
    at += many;
  }
  float* const mine = parts + blockIdx.x * (int64_t{Z::K} * Z::TAPS * Z::C);
#pragma unroll
  for (int tap = 0; tap < Z::TAPS; ++tap) {
    const float(&four)[4] = sums[tap / (Z::R * Z::S)][tap / Z::S % Z::R][tap % Z::S];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int k = filters + half * 16 + i / 2 * 8 + lane / 4, c = channels + quarter * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(mine + (int64_t{k} * Z::TAPS + tap) * Z::C + c) =
          make_float2(four[i], four[i + 1]);
    }
  }
}

template <typename T, typename Out, typename After, int... numbers>
int planes_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Planes<T, numbers...>;
  using W = PlanesWeight<Z>;
  const WideCall z = wide_call(call);
  const Columns columns = columns_of<Z>(z.n, call.z, call.p, call.q);
  const int64_t count = int64_t{Z::K} * Z::TAPS * Z::C;
  // Of the problem alone, so that sums are the same on all devices.
  const int64_t shares = ceil_of64(RW_DIRECT_BLOCKS, 2 * (Z::K / kChannels) * (Z::C / kChannels));
  const int64_t parts = columns.all < shares ? columns.all : shares;
  if (call.wanted != nullptr) return *call.wanted = parts * count * 4, 0;
  // A gradient that is made up would be multiplied with voxels of the image, which need not be numbers.
  if (call.p % Z::TP != 0 || call.q % Z::TQ != 0) return finished(cudaErrorInvalidValue);
  const Volume data = {call.d, call.h, call.w, Z::C}, made = {call.z, call.p, call.q, Z::K};
  const dim3 grid(static_cast<unsigned>(parts), Z::K / kChannels, Z::C / kChannels);
  cudaError_t error = launch_with(planes_weight<Z>, grid, Z::THREADS, W::BYTES, stream,
                                  static_cast<const T*>(z.first), static_cast<const T*>(z.second),
                                  static_cast<float*>(z.workspace), data, made, columns);
  if (error == cudaSuccess) error = sum_parts<Out>(z, count, static_cast<int>(parts), stream);
  return finished(error);
}

}  // namespace
