// ---- few filters on tensor cores: the result, and the gradient of the image ------------------------------
//
// Taps are columns of a product as filters are.  So the result's kernel multiplies each pixel of the
// image, which it reads once, from memory into registers, with all filters' taps, and then adds what
// belongs to a pixel of the result; the gradient's kernels gather from the few channels of the result's
// gradient what belongs to each pixel of the image.

namespace {

template <typename Type, int K_, int R_, int S_, int ST_, int DI_, int PH_, int PW_>
struct Few {
  using T = Type;
  static constexpr int K = K_, R = R_, S = S_, ST = ST_, DI = DI_, PH = PH_, PW = PW_, RS = R * S;
  static constexpr int KRS = K * RS, NB = ceil_of(KRS, 8);
  static constexpr int WARPS = 8, THREADS = 32 * WARPS;
  // The result's: pixels of the image at once, and how many of the result's rows a thread has.
  static constexpr int MT = NB <= 8 ? 2 : 1, PIXELS = 16 * MT * WARPS, OUTS = 10;
  static constexpr int PITCH = KRS | 1, BYTES = PIXELS * PITCH * 4;
  static_assert(K <= 8 && KRS <= 160);
};

// ---- the result

template <typename Z, typename Out, typename After>
__global__ void __launch_bounds__(Z::THREADS, Z::NB <= 8 ? 2 : 1)
    few_result(const typename Z::T* __restrict__ image, const typename Z::T* __restrict__ weight,
               Out* __restrict__ out, WideCall z, int tall, int broad, int down,
               int across) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int channels = static_cast<int>(z.c), height = static_cast<int>(z.h);
  const int width = static_cast<int>(z.w);
  const Spot sums_at = shared_memory();
  const int tile = blockIdx.x % (down * across);
  const int64_t n = blockIdx.x / (down * across);
  const int p0 = tile / across * tall, q0 = tile % across * broad;
  const int p1 = min(p0 + tall, static_cast<int>(z.p)), q1 = min(q0 + broad, static_cast<int>(z.q));
  // What of the image is in reach.
  const int h0 = max(p0 * Z::ST - Z::PH, 0), w0 = max(q0 * Z::ST - Z::PW, 0);
  const int h1 = min((p1 - 1) * Z::ST - Z::PH + (Z::R - 1) * Z::DI + 1, height);
  const int w1 = min((q1 - 1) * Z::ST - Z::PW + (Z::S - 1) * Z::DI + 1, width);
  const int columns = max(w1 - w0, 1), many = Z::PIXELS / columns;  // rows at once
  // Of this thread: a filter and a column of the result, and every some rows of it.
  const int beside = broad * Z::K, down_by = Z::THREADS / beside;
  const int k = threadIdx.x % beside % Z::K, q = q0 + threadIdx.x % beside / Z::K;
  const int first = p0 + static_cast<int>(threadIdx.x) / beside;
  const bool mine = static_cast<int>(threadIdx.x) / beside < down_by && q < q1;
  float outs[Z::OUTS] = {};
  after_the_one_before();
  const typename Z::T* const pixels = image + (n * height * width) * channels;
  for (int row = h0; row < h1; row += many) {
    const int rows = min(many, h1 - row);
    const typename Z::T* const line = pixels + int64_t{row} * width * channels;
    constexpr unsigned none = ~0u;
    unsigned from[Z::MT][2];
#pragma unroll
    for (int m = 0; m < Z::MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = (warp * Z::MT + m) * 16 + half * 8 + lane / 4, y = pixel / columns;
        from[m][half] =
            y < rows ? (y * width + w0 + pixel % columns) * channels + lane % 4 * 8 : none;
      }
    }
    float sums[Z::MT][Z::NB][4] = {};
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 a[Z::MT][2], later[Z::MT][2];
    auto load = [&](uint4(&to)[Z::MT][2], int c) {
#pragma unroll
      for (int m = 0; m < Z::MT; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool read = from[m][half] != none && c + lane % 4 * 8 < channels;
          to[m][half] = read ? global_16(line + from[m][half] + c) : zero;
        }
      }
    };
    load(a, 0);
#pragma unroll 1
    for (int c = 0; c < channels; c += 32) {
      load(later, c + 32);
      const typename Z::T* const filter = weight + int64_t{lane / 4} * channels + c + lane % 4 * 8;
#pragma unroll
      for (int b = 0; b < Z::NB; ++b) {
        const bool read = b * 8 + lane / 4 < Z::KRS && c + lane % 4 * 8 < channels;
        const uint4 f = read ? global_16(filter + int64_t{b} * 8 * channels) : zero;
#pragma unroll
        for (int m = 0; m < Z::MT; ++m) {
          const unsigned low[4] = {a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y};
          const unsigned high[4] = {a[m][0].z, a[m][1].z, a[m][0].w, a[m][1].w};
          multiply_16(sums[m][b], low, f.x, f.y, typename Z::T{});
          multiply_16(sums[m][b], high, f.z, f.w, typename Z::T{});
        }
      }
#pragma unroll
      for (int m = 0; m < Z::MT; ++m) a[m][0] = later[m][0], a[m][1] = later[m][1];
    }
    __syncthreads();  // what was there has been added
#pragma unroll
    for (int m = 0; m < Z::MT; ++m) {
#pragma unroll
      for (int b = 0; b < Z::NB; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int pixel = (warp * Z::MT + m) * 16 + i / 2 * 8 + lane / 4;
          const int column = b * 8 + lane % 4 * 2 + i % 2;
          if (column < Z::KRS) {
            write_f(sums_at + static_cast<Spot>((pixel * Z::PITCH + column) * 4), sums[m][b][i]);
          }
        }
      }
    }
    __syncthreads();
    if (mine) {
      const int left = q * Z::ST - Z::PW - w0;
#pragma unroll
      for (int j = 0; j < Z::OUTS; ++j) {
        const int p = first + j * down_by;
        if (p >= p1) break;
#pragma unroll
        for (int r = 0; r < Z::R; ++r) {
          const int y = p * Z::ST - Z::PH + r * Z::DI - row;
          if (y < 0 || y >= rows) continue;
#pragma unroll
          for (int s = 0; s < Z::S; ++s) {
            const int x = left + s * Z::DI;
            if (x >= 0 && x < columns) {
              outs[j] += read_f(sums_at + static_cast<Spot>(((y * columns + x) * Z::PITCH + k * Z::RS +
                                                             r * Z::S + s) * 4));
            }
          }
        }
      }
    }
  }
  if (mine) {
    const Out* const source = static_cast<const Out*>(z.source);
    float operand = 0;
    if constexpr (After::kPerChannel) operand = wide(source[k]);
#pragma unroll
    for (int j = 0; j < Z::OUTS; ++j) {
      const int p = first + j * down_by;
      if (p >= p1) break;
      const int64_t to = ((n * z.p + p) * z.q + q) * Z::K + k;
      if constexpr (After::kWhole) operand = wide(source[to]);
      out[to] = narrow<Out>(After::of(outs[j], operand));
    }
  }
}

template <typename T, typename Out, typename After, int... numbers>
int few_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Few<T, numbers...>;
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  const WideCall z = wide_call(call);
  // A tile's columns: as many as a thread's places allow and a batch of pixels holds.
  const int reach = (Z::S - 1) * Z::DI + 1, most = Z::PIXELS / 2 > 64 ? 64 : Z::PIXELS / 2;
  int64_t wide = z.w <= most ? z.q : (most - reach) / Z::ST + 1;
  if (wide > Z::THREADS / Z::K) wide = Z::THREADS / Z::K;
  if (wide > z.q) wide = z.q;
  wide = ceil_of64(z.q, ceil_of64(z.q, wide));
  int64_t tall = Z::OUTS * (Z::THREADS / (wide * Z::K));
  if (tall > z.p) tall = z.p;
  while (tall > 2 * Z::R && z.n * ceil_of64(z.p, tall) * ceil_of64(z.q, wide) < 512) {
    tall = (tall + 1) / 2;
  }
  tall = ceil_of64(z.p, ceil_of64(z.p, tall));
  const int64_t down = ceil_of64(z.p, tall), across = ceil_of64(z.q, wide);
  // A kernel counts elements of what it reads at once in 32 bits.
  if (z.n * down * across > kMostTiles || Z::PIXELS * z.w * z.c >= int64_t{1} << 31) return finished(cudaErrorInvalidValue);
  return finished(launch_with(
      few_result<Z, Out, After>, dim3(static_cast<unsigned>(z.n * down * across)), Z::THREADS,
      Z::BYTES, stream, static_cast<const T*>(z.first), static_cast<const T*>(z.second),
      static_cast<Out*>(z.out), z,
      static_cast<int>(tall), static_cast<int>(wide), static_cast<int>(down),
      static_cast<int>(across)));
}

// ---- the gradient of the image

// What of the result's gradient belongs to `count` pixels of the image from `begin`: a line for each,
// in the order of taps and filters, filled with zeros.
template <typename Z, int count, int pitch>
__device__ inline void gather_pixels(Spot to, const typename Z::T* grad, int64_t begin, int64_t end,
                                     const WideCall& z) {
  const auto* bits = reinterpret_cast<const unsigned short*>(grad);
  const int height = static_cast<int>(z.h), width = static_cast<int>(z.w);
  const int rows = static_cast<int>(z.p), columns = static_cast<int>(z.q);
  const int threads = static_cast<int>(blockDim.x);
  for (int i = threadIdx.x; i < count * ceil_of(Z::RS, 8); i += threads) {
    const int pixel = i % count, some = i / count * 8;
    const int64_t at = begin + pixel, line = at / width;
    const int w = static_cast<int>(at - line * width);
    const int64_t n = line / height;
    const int h = static_cast<int>(line - n * height);
    const bool there = at < end;
    const Spot mine = to + static_cast<Spot>(pixel * pitch * 16);
    int r = some / Z::S, s = some % Z::S;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (some + j >= Z::RS) break;
      const int y = h + Z::PH - r * Z::DI, x = w + Z::PW - s * Z::DI;
      const int p = y / Z::ST, q = x / Z::ST;
      const bool has = there && y >= 0 && x >= 0 && y % Z::ST == 0 && x % Z::ST == 0 && p < rows &&
                       q < columns;
      const unsigned short* from = bits + (has ? ((n * rows + p) * columns + q) * Z::K : 0);
#pragma unroll
      for (int k = 0; k < Z::K; ++k) {
        write_2(mine + static_cast<Spot>(((some + j) * Z::K + k) * 2),
                has ? from[k] : static_cast<unsigned short>(0));
      }
      if (++s == Z::S) s = 0, ++r;
    }
  }
  constexpr int filled = pitch * 8 - Z::KRS;
  for (int i = threadIdx.x; i < count * filled; i += threads) {
    write_2(to + static_cast<Spot>((i / filled * pitch * 8 + Z::KRS + i % filled) * 2), 0);
  }
}

template <typename Z>
struct FewBack {
  static constexpr int STEPS = ceil_of(Z::KRS, 16), PIXELS = 128, PITCH = odd_of(2 * STEPS);
  static constexpr int MOST = STEPS <= 5 ? 512 : 256;  // threads: filters are in registers
  static constexpr int REGISTERS = STEPS <= 5 ? 96 : 256, BYTES = PIXELS * PITCH * 16;
};

template <typename Z, typename After>
__global__ void __launch_bounds__(FewBack<Z>::MOST, 1)
    few_gradient(const typename Z::T* __restrict__ grad, const typename Z::T* __restrict__ weight,
                 typename Z::T* __restrict__ out, WideCall z, int chunks, int parts,
                 int64_t tiles) {
  using B = FewBack<Z>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int channels = static_cast<int>(z.c);
  const int64_t end = z.n * z.h * z.w;
  const Spot lines = shared_memory();
  unsigned b[B::STEPS][4][2];
  int has = -1;  // 32 channels, whose filters are in registers
  const auto* const source = static_cast<const typename Z::T*>(z.source);
  after_the_one_before();
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    gather_pixels<Z, B::PIXELS, B::PITCH>(lines, grad, tile * B::PIXELS, end, z);
    __syncthreads();
    for (int item = warp; item < chunks * parts; item += warps) {
      const int chunk = item % chunks, part = item / chunks;
      const int c = chunk * 32 + lane % 4 * 8, of = chunk * 32 + lane / 8 * 8;
      if (chunk != has) {
        has = chunk;
#pragma unroll
        for (int step = 0; step < B::STEPS; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint4 both[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int term = step * 16 + half * 8 + lane % 4 * 2 + i;
              const int place = term % Z::K * Z::RS + term / Z::K;
              const bool read = term < Z::KRS && of < channels;
              both[i] = read ? global_16(weight + int64_t{place} * channels + of)
                             : make_uint4(0, 0, 0, 0);
            }
            const unsigned which = lane / 4 % 2 ? 0x7632 : 0x5410;
            b[step][0][half] = __byte_perm(both[0].x, both[1].x, which);
            b[step][1][half] = __byte_perm(both[0].y, both[1].y, which);
            b[step][2][half] = __byte_perm(both[0].z, both[1].z, which);
            b[step][3][half] = __byte_perm(both[0].w, both[1].w, which);
          }
        }
      }
      bool some = false;  // is NaN
      for (int m = part; m < B::PIXELS / 16; m += parts) {
        float sums[4][4] = {};
        const Spot mine = lines + static_cast<Spot>(((m * 16 + lane % 16) * B::PITCH + lane / 16) * 16);
#pragma unroll
        for (int step = 0; step < B::STEPS; ++step) {
          unsigned a[4];
          matrices_4<false>(a, mine + step * 32);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            multiply_16(sums[n], a, b[step][n][0], b[step][n][1], typename Z::T{});
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t pixel = tile * B::PIXELS + m * 16 + half * 8 + lane / 4;
          if (pixel >= end || c >= channels) continue;
          const int64_t to = pixel * channels + c;
          uint4 operands = make_uint4(0, 0, 0, 0);
          if constexpr (After::kReads) operands = global_16(source + (After::kWhole ? to : c));
          auto two = [&](unsigned bits, const float(&sum)[4]) {
            const float2 operand = both_of<typename Z::T>(bits);
            return two_of<typename Z::T>(After::of(sum[2 * half], operand.x),
                                         After::of(sum[2 * half + 1], operand.y));
          };
          uint4 all;
          all.x = two(operands.x, sums[0]), all.y = two(operands.y, sums[1]);
          all.z = two(operands.z, sums[2]), all.w = two(operands.w, sums[3]);
          *reinterpret_cast<uint4*>(out + to) = all;
          some = some || has_nan<typename Z::T>(all);
        }
      }
#pragma unroll 1
      for (int i = part * 2; some && i < B::PIXELS / 8; i += i % 2 ? 2 * parts - 1 : 1) {
        const int64_t pixel = tile * B::PIXELS + i * 8 + lane / 4;
        if (pixel >= end || c >= channels) continue;
        const int64_t line = pixel / z.w, n = line / z.h;
        mend<Z, After, true>(out, pixel * channels + c, grad, weight, z, channels, Z::K, n,
                             static_cast<int>(line - n * z.h),
                             static_cast<int>(pixel - line * z.w), c);
      }
      __syncwarp();
    }
    __syncthreads();
  }
}

template <typename T, typename Out, typename After, int... numbers>
int few_dgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  using Z = Few<T, numbers...>;
  using B = FewBack<Z>;
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  const WideCall z = wide_call(call);
  if (is_point<Z>(z)) return point_dgrad<Z, After>(z, stream);
  const int chunks = static_cast<int>(ceil_of64(z.c, 32));
  const int parts = chunks >= 8 ? 1 : ceil_of(8, chunks);
  const int warps = chunks * parts <= B::MOST / 32 ? chunks * parts : B::MOST / 32;
  const int64_t tiles = ceil_of64(z.n * z.h * z.w, B::PIXELS);
  const int fit = 65536 / (B::REGISTERS * 32 * warps);  // on a multiprocessor
  const int64_t most = int64_t{multiprocessors()} * (fit < 1 ? 1 : fit);
  const int64_t each = ceil_of64(tiles, most), blocks = ceil_of64(tiles, each);
  return finished(launch_with(few_gradient<Z, After>, dim3(static_cast<unsigned>(blocks)), 32 * warps,
                              B::BYTES, stream, static_cast<const T*>(z.first),
                              static_cast<const T*>(z.second), static_cast<T*>(z.out), z, chunks, parts,
                              tiles));
}

}  // namespace
