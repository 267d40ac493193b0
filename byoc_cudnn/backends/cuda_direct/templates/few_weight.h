// ---- few filters on tensor cores: their gradient ---------------------------------------------------------
//
// A product's rows are 16 channels, its columns taps and filters, its terms 16 pixels of the image,
// which is read once.  The sums stay in registers while a block goes through its tiles; each part is
// in float32, and the parts are added in order.

namespace {

// MW times 16 channels for each of BESIDE warps; the other warps have other pixels.
template <typename Z, int MW_, int BESIDE_>
struct FewWeight {
  static constexpr int MW = MW_, BESIDE = BESIDE_, OTHERS = Z::WARPS / BESIDE;
  static constexpr int PIXELS = 64, CHANNELS = 16 * MW * BESIDE, CHUNKS = CHANNELS / 8;
  static constexpr int PITCH = odd_of(CHUNKS), LINE = odd_of(Z::NB);
  static constexpr int IMAGE_BYTES = PIXELS * PITCH * 16, LINE_BYTES = PIXELS * LINE * 16;
  static constexpr int BYTES = 2 * (IMAGE_BYTES + LINE_BYTES);
};

template <typename Z, typename W>
__global__ void __launch_bounds__(Z::THREADS)
    few_filters(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ image,
                float* __restrict__ parts, WideCall z, int tiles) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % W::BESIDE * W::MW, other = warp / W::BESIDE;
  const int channels = static_cast<int>(z.c), first = blockIdx.x * W::CHANNELS;
  const int64_t end = z.n * z.h * z.w;
  const Spot images = shared_memory(), lines = images + 2 * W::IMAGE_BYTES;
  float sums[W::MW][Z::NB][4] = {};
  after_the_one_before();
  auto read = [&](int tile, int to) {
    for (int i = threadIdx.x; i < W::PIXELS * W::CHUNKS; i += Z::THREADS) {
      const int chunk = i % W::CHUNKS, pixel = i / W::CHUNKS, c = first + chunk * 8;
      const int64_t at = int64_t{tile} * W::PIXELS + pixel;
      const bool there = at < end && c < channels;
      copy_16(images + to * W::IMAGE_BYTES + static_cast<Spot>((pixel * W::PITCH + chunk) * 16),
              there ? image + at * channels + c : image, there);
    }
  };
  auto gather = [&](int tile, int to) {
    gather_pixels<Z, W::PIXELS, W::LINE>(lines + to * W::LINE_BYTES, grad, int64_t{tile} * W::PIXELS,
                                         end, z);
  };
  int turn = 0;
  read(blockIdx.y, 0);
  copies_end();
  gather(blockIdx.y, 0);
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int next = tile + static_cast<int>(gridDim.y);
    if (next < tiles) read(next, turn ^ 1);
    copies_end();
    wait_copies<1>();
    __syncthreads();
    const Spot here = images + turn * W::IMAGE_BYTES, line = lines + turn * W::LINE_BYTES;
    for (int step = other; step < W::PIXELS / 16; step += W::OTHERS) {
      unsigned a[W::MW][4];
#pragma unroll
      for (int m = 0; m < W::MW; ++m) {
        const int pixel = step * 16 + lane / 16 * 8 + lane % 8, chunk = (row + m) * 2 + lane / 8 % 2;
        matrices_4<true>(a[m], here + static_cast<Spot>((pixel * W::PITCH + chunk) * 16));
      }
#pragma unroll
      for (int n = 0; n < Z::NB; n += 2) {
        const int pixel = step * 16 + lane % 16, column = n + 1 < Z::NB ? n + lane / 16 : n;
        unsigned b[4];
        matrices_4<true>(b, line + static_cast<Spot>((pixel * W::LINE + column) * 16));
#pragma unroll
        for (int m = 0; m < W::MW; ++m) {
          multiply_16(sums[m][n], a[m], b[0], b[1], typename Z::T{});
          if (n + 1 < Z::NB) multiply_16(sums[m][n + 1 < Z::NB ? n + 1 : n], a[m], b[2], b[3], typename Z::T{});
        }
      }
    }
    if (next < tiles) gather(next, turn ^ 1);
    __syncthreads();
    turn ^= 1;
  }
  float* const mine = parts + (int64_t{blockIdx.y} * W::OTHERS + other) * Z::KRS * z.c;
  auto each = [&](auto&& what) {
#pragma unroll
    for (int m = 0; m < W::MW; ++m) {
#pragma unroll
      for (int n = 0; n < Z::NB; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int c = first + (row + m) * 16 + i / 2 * 8 + lane / 4;
          const int column = n * 8 + lane % 4 * 2 + i % 2, tap = column / Z::K, k = column % Z::K;
          if (c < channels && column < Z::KRS) {
            what(mine + int64_t{k * Z::RS + tap} * channels + c, sums[m][n][i]);
          }
        }
      }
    }
  };
  bool some = false;  // is NaN
  each([&](float* to, float sum) {
    *to = sum;
    some = some || sum != sum;
  });
  if (!some) return;
  // A pixel has been multiplied with zeros where a tap does not meet a result: again without those.
#pragma unroll 1
  for (int i = 0; i < W::MW * Z::NB * 4; ++i) {
    const int c = first + (row + i / 4 / Z::NB) * 16 + i % 4 / 2 * 8 + lane / 4;
    const int column = i / 4 % Z::NB * 8 + lane % 4 * 2 + i % 2, tap = column / Z::K, k = column % Z::K;
    if (c >= channels || column >= Z::KRS) continue;
    float* const to = mine + int64_t{k * Z::RS + tap} * channels + c;
    if (*to == *to) continue;
    float sum = 0;
#pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
#pragma unroll 1
      for (int pixel = other * 16; pixel < W::PIXELS; pixel += pixel % 16 < 15 ? 1 : W::OTHERS * 16 - 15) {
        const int64_t at = int64_t{tile} * W::PIXELS + pixel;
        const int64_t line = at / z.w, n = line / z.h;
        const int y = static_cast<int>(line - n * z.h) + Z::PH - tap / Z::S * Z::DI;
        const int x = static_cast<int>(at - line * z.w) + Z::PW - tap % Z::S * Z::DI;
        const int p = y / Z::ST, q = x / Z::ST;
        if (at < end && y >= 0 && x >= 0 && y % Z::ST == 0 && x % Z::ST == 0 && p < z.p && q < z.q) {
          sum += wide(grad[((n * z.p + p) * z.q + q) * Z::K + k]) * wide(image[at * channels + c]);
        }
      }
    }
    *to = sum;
  }
}

// Of the problem alone, so that sums are the same on all devices.
template <typename Z, typename W>
inline int64_t parts_of(const WideCall& z) {
  const int64_t tiles = ceil_of64(z.n * z.h * z.w, W::PIXELS);
  int64_t many = ceil_of64(RW_DIRECT_BLOCKS, ceil_of64(z.c, W::CHANNELS));
  if (many > tiles) many = tiles;
  return ceil_of64(tiles, ceil_of64(tiles, many));
}

template <typename Z, typename W, typename Out>
int few_with(const WideCall& z, cudaStream_t stream, int64_t* wanted) {
  using T = typename Z::T;
  const int64_t many = parts_of<Z, W>(z), count = int64_t{Z::KRS} * z.c;
  if (wanted != nullptr) return *wanted = many * W::OTHERS * count * 4, 0;
  const int64_t tiles = ceil_of64(z.n * z.h * z.w, W::PIXELS);
  if (tiles > kMostTiles) return finished(cudaErrorInvalidValue);
  const auto slabs = static_cast<unsigned>(ceil_of64(z.c, W::CHANNELS));
  cudaError_t error = launch_with(few_filters<Z, W>, dim3(slabs, static_cast<unsigned>(many)),
                                  Z::THREADS, W::BYTES, stream, static_cast<const T*>(z.first),
                                  static_cast<const T*>(z.second), static_cast<float*>(z.workspace), z,
                                  static_cast<int>(tiles));
  if (error == cudaSuccess) {
    error = sum_parts<Out>(z, count, static_cast<int>(many) * W::OTHERS, stream);
  }
  return finished(error);
}

template <typename T, typename Out, typename After, int... numbers>
int few_wgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Few<T, numbers...>;
  const WideCall z = wide_call(call);
  if (is_point<Z>(z)) return point_wgrad<Z, Out>(z, stream, call.wanted);
  if (z.c <= 64) return few_with<Z, FewWeight<Z, 1, 4>, Out>(z, stream, call.wanted);
  if constexpr (Z::NB <= 8) {
    if (z.c > 256 && z.c <= 384 && FewWeight<Z, 3, 8>::BYTES <= most_shared()) return few_with<Z, FewWeight<Z, 3, 8>, Out>(z, stream, call.wanted);
    if (z.c > 128) return few_with<Z, FewWeight<Z, 2, 8>, Out>(z, stream, call.wanted);
  }
  return few_with<Z, FewWeight<Z, 1, 8>, Out>(z, stream, call.wanted);
}

}  // namespace
