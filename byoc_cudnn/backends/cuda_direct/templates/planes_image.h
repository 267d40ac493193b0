// ---- dense convolutions of volumes with 32 channels: the result, and the gradient of the image -------------
//
// The gradient of the image is a result of the result's gradient with its taps in the other order.  A product's
// rows are 16 voxels of a row, its columns 8 filters, its terms 16 channels of 32.  A warp has some rows of 16
// voxels with 32 filters in registers, of 64 channels one of two has half of the sums; a row of the image is loaded for the R rows of the result that read it.  Filters
// are in an order by which a lane's sums of four products are 8 filters beside each other.

namespace {

template <typename Z, bool back>
struct PlanesImage {
  static constexpr int FRONT = back ? Z::DEPTH - 1 - Z::PF : Z::PF, TOP = back ? Z::R - 1 - Z::PH : Z::PH,
                       LEFT = back ? Z::S - 1 - Z::PW : Z::PW;
  static constexpr int IN = back ? Z::K : Z::C, OUT = back ? Z::C : Z::K;
  static constexpr int PARTS = IN / kChannels;  // of the channels, warps beside and below each other; rows of each
  static constexpr int BESIDE = Z::TQ / 16, DOWN = Z::WARPS / PARTS / BESIDE, HIGH = Z::TP / DOWN;
  static constexpr int OWN = HIGH / PARTS, SLOT = PARTS * Z::PLANE;
  static constexpr int FILTERS = Z::TAPS * kChannels * kPixel;  // bytes of a part
  static constexpr int RING = PARTS * FILTERS, SUMS = RING + Z::RING * SLOT;
  static constexpr int BYTES = SUMS + (PARTS - 1) * OWN * 4 * Z::THREADS * 16;
  static_assert(PARTS <= 2 && Z::WARPS % (PARTS * BESIDE) == 0 && Z::TP % DOWN == 0 && HIGH % PARTS == 0);
};

// The filters of all taps, as rows of a plane; of the image's gradient channels are filters.
template <typename Z, bool back>
__device__ inline void read_planes_filters(Spot to, const typename Z::T* weight, int first) {
  const auto* const bits = reinterpret_cast<const unsigned short*>(weight);
  constexpr int terms = PlanesImage<Z, back>::IN, quick = back ? kChannels : terms, count = terms * kChannels;
#pragma unroll 8
  for (int i = threadIdx.x; i < Z::TAPS * count; i += Z::THREADS) {
    const int fast = i % quick, slow = i % count / quick, tap = i / count;
    const int filter = back ? fast : slow, term = back ? slow : fast;
    const int place = (term / kChannels * Z::TAPS + tap) * kChannels * kPixel + term % 8 * 2;
    const int line = filter % 8 / 2 * 8 + filter / 8 * 2 + filter % 2;
    const int64_t from = back ? (int64_t{term} * Z::TAPS + Z::TAPS - 1 - tap) * Z::C + first + filter
                              : (int64_t{first + filter} * Z::TAPS + tap) * Z::C + term;
    write_2(to + static_cast<Spot>(place) + piece_of(line, term % kChannels / 8), __ldg(bits + from));
  }
}

template <typename Z, typename After, bool back>
__global__ void __launch_bounds__(Z::THREADS, 1)
    planes_image(const typename Z::T* __restrict__ image, const typename Z::T* __restrict__ weight,
                 typename Z::T* __restrict__ out, const typename Z::T* __restrict__ source, Volume data,
                 Volume made, Columns columns) {
  using T = typename Z::T;
  using I = PlanesImage<Z, back>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int filters = blockIdx.y * kChannels;
  const int chunk = warp % I::PARTS, place = warp / I::PARTS;
  const int down = place / I::BESIDE * I::HIGH, beside = place % I::BESIDE * 16;
  const Spot weights = shared_memory(), ring = weights + I::RING;
  const Spot shared_sums = weights + I::SUMS + static_cast<Spot>(lane * 16);
  Spot of_image[Z::S][2], of_filter[2];  // by pieces: two of them are 16 channels
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int s = 0; s < Z::S; ++s) {
      of_image[s][part] = piece_of(lane % 16 + s, 2 * part + lane / 16) +
                          static_cast<Spot>((down * Z::COLUMNS + beside) * kPixel + chunk * Z::PLANE);
    }
    of_filter[part] = weights + static_cast<Spot>(chunk * I::FILTERS) +
                      piece_of(lane / 16 * 8 + lane % 8, 2 * part + lane / 8 % 2);
  }
  after_the_one_before();
  read_planes_filters<Z, back>(weights, weight, filters);
  int64_t at = columns.all * blockIdx.x / gridDim.x;
  const int64_t end = columns.all * (blockIdx.x + 1) / gridDim.x;
  while (at < end) {
    const int64_t column = at / columns.planes, n = column / (columns.down * columns.across);
    const int tile = static_cast<int>(column % (columns.down * columns.across));
    const int first = static_cast<int>(at % columns.planes);
    const int top = tile / columns.across * Z::TP, left = tile % columns.across * Z::TQ;
    const int64_t rest = end - at;
    const int many = rest < columns.planes - first ? static_cast<int>(rest) : columns.planes - first;
    auto read = [&](int z) {
#pragma unroll
      for (int c = 0; c < I::PARTS; ++c) {
        read_plane<Z::ROWS, Z::TQ + Z::S - 1, Z::COLUMNS, Z::THREADS>(
            ring + static_cast<Spot>((z - first) % Z::RING * I::SLOT + c * Z::PLANE), image, data, n,
            z - I::FRONT, top - I::TOP, left - I::LEFT, c * kChannels);
      }
    };
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < Z::DEPTH; ++t) read(first + t);
    copies_end();
#pragma unroll 1
    for (int z = first; z < first + many; ++z) {
      wait_copies<0>();
      __syncthreads();
      if (z + 1 < first + many) read(z + Z::DEPTH);
      copies_end();
      float sums[I::HIGH][4][4] = {};
#pragma unroll 1
      for (int t = 0; t < Z::DEPTH; ++t) {
        const Spot plane = ring + static_cast<Spot>((z - first + t) % Z::RING * I::SLOT);
        const Spot taps = static_cast<Spot>(t * Z::R * Z::S * kChannels * kPixel);
#pragma unroll
        for (int s = 0; s < Z::S; ++s) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            unsigned b[Z::R][2][4];
#pragma unroll
            for (int r = 0; r < Z::R; ++r) {
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                matrices_4<false>(b[r][j], of_filter[part] + taps +
                                               static_cast<Spot>(((r * Z::S + s) * kChannels + j * 16) * kPixel));
              }
            }
#pragma unroll
            for (int h = 0; h < I::HIGH + Z::R - 1; ++h) {
              unsigned a[4];
              matrices_4<false>(a, plane + of_image[s][part] + static_cast<Spot>(h * Z::COLUMNS * kPixel));
#pragma unroll
              for (int r = 0; r < Z::R; ++r) {
                if (h - r < 0 || h - r >= I::HIGH) continue;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                  multiply_16(sums[h - r][j], a, b[r][j / 2][j % 2 * 2], b[r][j / 2][j % 2 * 2 + 1], T{});
                }
              }
            }
          }
        }
      }
      if constexpr (I::PARTS == 2) {
        // The other warp's rows to it, its sums of one's own from it.
#pragma unroll
        for (int i = 0; i < 4 * I::OWN; ++i) {
          float four[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            four[j] = chunk == 0 ? sums[I::OWN + i / 4][i % 4][j] : sums[i / 4][i % 4][j];
          }
          uint4 bits;
          memcpy(&bits, four, sizeof(bits));
          write_16(shared_sums + static_cast<Spot>((warp * 4 * I::OWN + i) * 512), bits);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4 * I::OWN; ++i) {
          const uint4 bits = read_16(shared_sums + static_cast<Spot>(((warp ^ 1) * 4 * I::OWN + i) * 512));
          float four[4];
          memcpy(four, &bits, sizeof(bits));
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float low = sums[i / 4][i % 4][j], high = sums[I::OWN + i / 4][i % 4][j];
            sums[i / 4][i % 4][j] = (chunk == 0 ? low : high) + four[j];
          }
        }
      }
      uint4 operand = {};
      if constexpr (After::kPerChannel) operand = global_16(source + filters + t4 * 8);
#pragma unroll
      for (int h = 0; h < I::OWN; ++h) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = top + down + chunk * I::OWN + h, q = left + beside + half * 8 + g;
          if (row >= made.height || q >= made.width) continue;
          const int64_t to =
              (((n * made.depth + z) * made.height + row) * made.width + q) * I::OUT + filters + t4 * 8;
          if constexpr (After::kWhole) operand = global_16(source + to);
          const unsigned with[4] = {operand.x, operand.y, operand.z, operand.w};
          unsigned eight[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float2 beside_it = make_float2(0, 0);
            if constexpr (After::kReads) beside_it = both_of<T>(with[i]);
            eight[i] = two_of<T>(After::of(sums[h][i][2 * half], beside_it.x),
                                 After::of(sums[h][i][2 * half + 1], beside_it.y));
          }
          *reinterpret_cast<uint4*>(out + to) = make_uint4(eight[0], eight[1], eight[2], eight[3]);
        }
      }
    }
    at += many;
  }
}

template <typename T, typename After, bool back, int... numbers>
int planes_made(const RelayWgradDirectCall& call, cudaStream_t stream) {
  using Z = Planes<T, numbers...>;
  using I = PlanesImage<Z, back>;
  if (call.wanted != nullptr) return *call.wanted = 0, 0;
  const WideCall z = wide_call(call);
  const Volume data = {call.d, call.h, call.w, Z::C}, grad = {call.z, call.p, call.q, Z::K};
  const Volume made = back ? data : grad;
  const Columns columns = columns_of<Z>(z.n, made.depth, made.height, made.width);
  const int64_t shares = ceil_of64(multiprocessors(), I::OUT / kChannels);
  const dim3 grid(static_cast<unsigned>(columns.all < shares ? columns.all : shares), I::OUT / kChannels);
  return finished(launch_with(planes_image<Z, After, back>, grid, Z::THREADS, I::BYTES, stream,
                              static_cast<const T*>(z.first), static_cast<const T*>(z.second),
                              static_cast<T*>(z.out), static_cast<const T*>(z.source), back ? grad : data,
                              made, columns));
}

template <typename T, typename Out, typename After, int... numbers>
int planes_fprop(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  return planes_made<T, After, false, numbers...>(call, stream);
}

template <typename T, typename Out, typename After, int... numbers>
int planes_dgrad(const RelayWgradDirectCall& call, cudaStream_t stream) {
  static_assert(std::is_same_v<T, Out>);
  return planes_made<T, After, true, numbers...>(call, stream);
}

}  // namespace
