// ---- operands in float16, scaled by channel: kernels -----------------------------------------------------
//
// By the inequality of Cauchy and Schwarz a result is no larger than the product of two channels' norms.
// Norms below 2^7 and 2^8 keep it below 2^15, so it fits into float16 whatever the numbers are; and what
// float16 rounds or loses of an operand is at most 2^-25, where its channel's norm is 2^6 at least.

#include <cstring>

namespace {

constexpr int kRows = 4;  // that a thread has under way

// Which channels a thread has, `V` of them, and which rows.  A block's threads are `lanes` rows of `width`.
struct Place {
  int channel, lane, lanes, width;
  bool active;
};

template <int V>
__device__ inline Place place_of(int channels) {
  const int packs = channels / V, first = static_cast<int>(blockIdx.y) * kThreads;
  const int width = packs - first < kThreads ? packs - first : kThreads;
  if (width <= 0) return {0, 0, 1, 1, false};
  const int thread = static_cast<int>(threadIdx.x), lanes = kThreads / width;
  return {(first + thread % width) * V, thread / width, lanes, width, thread / width < lanes};
}

__device__ inline bool finite(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof(bits));
  return (bits & 0x7f800000u) != 0x7f800000u;
}

// 2^e of a float32's normal numbers.
__device__ inline float power_of_two(int e) {
  const unsigned bits = static_cast<unsigned>(e + 127) << 23;
  float out;
  memcpy(&out, &bits, sizeof(out));
  return out;
}

// Plain loads: those of read-only data may move above the wait for the kernel before.
__device__ inline void read(Pack<float, 4>& pack, const float* at) {
  const uint4 bits = *reinterpret_cast<const uint4*>(at);
  memcpy(&pack, &bits, sizeof(bits));
}

// A block's sums of squares, in an order that is always the same; NaN and infinity scale nothing.
__global__ void __launch_bounds__(kThreads)
    square_sums(const __grid_constant__ RelayWgradScaledCall call) {
  begin();
  __shared__ double all[kThreads * 4];
  const RelayWgradScaledSide& z = call.side[blockIdx.z];
  const Place at = place_of<4>(z.channels);
  double sum[4] = {};
  if (at.active) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * at.lanes;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * at.lanes + at.lane; row < z.rows; row += kRows * step) {
      Pack<float, 4> packs[kRows] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i * step < z.rows) read(packs[i], z.from + (row + i * step) * z.channels + at.channel);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const double x = finite(packs[i].value[c]) ? static_cast<double>(packs[i].value[c]) : 0.0;
          sum[c] += x * x;
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) all[c * kThreads + threadIdx.x] = sum[c];
  __syncthreads();
  if (!at.active || at.lane != 0) return;
  for (int c = 0; c < 4; ++c) {
    double total = 0;
    for (int lane = 0; lane < at.lanes; ++lane) {
      total += all[c * kThreads + threadIdx.x + lane * at.width];
    }
    z.squares[static_cast<int64_t>(blockIdx.x) * z.channels + at.channel + c] = total;
  }
}

constexpr int kTogether = 8;  // channels of a block of `exponents`

// The largest scales that keep the norms below their bounds.
__global__ void __launch_bounds__(kThreads)
    exponents(const __grid_constant__ RelayWgradScaledCall call) {
  begin();
  constexpr int kLanes = kThreads / kTogether;
  __shared__ double all[kThreads];
  const RelayWgradScaledSide& z = call.side[blockIdx.z];
  const int thread = static_cast<int>(threadIdx.x), lane = thread / kTogether;
  const int channel = static_cast<int>(blockIdx.x) * kTogether + thread % kTogether;
  double sum = 0;
  if (channel < z.channels) {
#pragma unroll 4
    for (int block = lane; block < call.blocks; block += kLanes) {
      sum += z.squares[static_cast<int64_t>(block) * z.channels + channel];
    }
  }
  all[thread] = sum;
  __syncthreads();
  if (lane != 0 || channel >= z.channels) return;
  double total = 0;
  for (int i = 0; i < kLanes; ++i) total += all[i * kTogether + thread];
  // total < 2^(e + 1), and total * 4^scale is to be no more than 4^bound.
  int64_t bits;
  memcpy(&bits, &total, sizeof(bits));
  const int e = static_cast<int>(bits >> 52) - 1023;
  z.exponent[channel] = total > 0 ? (2 * z.bound - 1 - e) >> 1 : 0;
}

// A scale may be no float32 of its own, but is the product of two; neither product rounds what stays.
__global__ void __launch_bounds__(kThreads)
    scale(const __grid_constant__ RelayWgradScaledCall call) {
  begin();
  const RelayWgradScaledSide& z = call.side[blockIdx.z];
  const Place at = place_of<8>(z.channels);
  if (!at.active) return;
  float first[8], second[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const int e = z.exponent[at.channel + c];
    first[c] = power_of_two(e >> 1);
    second[c] = power_of_two(e - (e >> 1));
  }
  __half* const to = static_cast<__half*>(z.to);
  const int64_t step = static_cast<int64_t>(gridDim.x) * at.lanes;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * at.lanes + at.lane; row < z.rows; row += kRows * step) {
    Pack<float, 4> packs[2 * kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row + i * step >= z.rows) break;
      const float* const from = z.from + (row + i * step) * z.channels + at.channel;
      read(packs[2 * i], from);
      read(packs[2 * i + 1], from + 4);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row + i * step >= z.rows) break;
      Pack<__half, 8> out;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        out.value[c] = __float2half_rn(packs[2 * i + c / 4].value[c % 4] * first[c] * second[c]);
      }
      store<true>(to + (row + i * step) * z.channels + at.channel, out, 8);
    }
  }
}

// A block has elements of one filter.
__global__ void __launch_bounds__(kThreads)
    restore(const __grid_constant__ RelayWgradScaledCall call) {
  begin();
  const int filter = static_cast<int>(blockIdx.x);
  const int* const exponent = call.side[0].exponent + filter / call.filters * call.channels;
  const int own = call.side[1].exponent[filter];
  const int64_t first = filter * static_cast<int64_t>(call.per_filter);
  const __half* const made = static_cast<const __half*>(call.made) + first;
  float* const result = call.result + first;
  const unsigned step = gridDim.y * kThreads;
  for (unsigned i = blockIdx.y * kThreads + threadIdx.x; i < call.per_filter; i += step) {
    const int e = own + exponent[i % static_cast<unsigned>(call.channels)];
    result[i] = ldexpf(__half2float(made[i]), -e);
  }
}

inline unsigned most(int64_t a, int64_t b) { return static_cast<unsigned>(a < b ? b : a); }

inline int scaled_half(const RelayWgradScaledCall& call, cudaStream_t stream) {
  if (call.restore) {
    const unsigned blocks = (call.per_filter + kThreads - 1) / kThreads;
    const dim3 grid(static_cast<unsigned>(call.side[1].channels), blocks < 8 ? blocks : 8);
    return finished(launch(restore, grid, kThreads, stream, call));
  }
  const int64_t channels = most(call.side[0].channels, call.side[1].channels);
  const unsigned blocks = static_cast<unsigned>(call.blocks);
  const auto chunks = [&](int v) { return static_cast<unsigned>((channels / v + kThreads - 1) / kThreads); };
  cudaError_t error = launch(square_sums, dim3(blocks, chunks(4), 2), kThreads, stream, call);
  if (error == cudaSuccess) {
    const unsigned groups = static_cast<unsigned>((channels + kTogether - 1) / kTogether);
    error = launch(exponents, dim3(groups, 1, 2), kThreads, stream, call);
  }
  if (error == cudaSuccess) {
    error = launch(scale, dim3(blocks, chunks(8), 2), kThreads, stream, call);
  }
  return finished(error);
}

}  // namespace
