// ---- what becomes of a sum on its way to the result, on Hopper ---------------------------------------

#include "cute/tensor.hpp"
#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"

namespace {

struct Target {
  void* result;
  const void* source;  // a bias, a residual or a mask
  int rows;            // of the result, as the main loop counts them
  int channels;        // of a row; also where a tile's columns end
  int channel_tiles;   // parts of one tap; a wgrad's columns are taps of channels
  int64_t pitch;       // from one row to the next, in elements
  int64_t slice;       // from one slice of a wgrad's sums to the next
  // A strided dgrad's rows are every stride-th pixel of every stride-th line, of `wide` and `high`.
  // Pixels that meet no tap follow one that does: a row stands for `fill` pixels and lines.
  int wide, high, w, h, stride_w, stride_h, first_w, first_h, fill_w, fill_h;
};

// A quad of lanes has 8 columns of a row, two each.  Of four such parts, lane i gets the whole of the
// i-th, or gives it back: the 4x4 transpose is its own inverse.
__device__ inline void exchange(uint32_t (&x)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    (odd ? x[i] : x[i + 1]) = got;
  }
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + 2], 2);
    (high ? x[i] : x[i + 2]) = got;
  }
}

template <typename Element>
__device__ inline uint32_t packed(float a, float b) {
  cutlass::Array<Element, 2> both;
  both[0] = Element(a);
  both[1] = Element(b);
  return reinterpret_cast<const uint32_t&>(both);
}

template <typename Element>
__device__ inline float unpacked(uint32_t both, int which) {
  return float(reinterpret_cast<const cutlass::Array<Element, 2>&>(both)[which]);
}

// In float32.  The mask passes the sum where its operand is 0 or NaN, as where(less(x, 0), 0, sum) does;
// the strict one, where(less_equal(x, 0), 0, sum), not where it is 0.
enum class Effect {
  kNone, kAdd, kAddRelu, kAddRelu6, kAddSilu, kRelu, kRelu6, kSilu, kMask, kStrictMask
};

template <Effect k>
inline constexpr bool kAdds =
    k == Effect::kAdd || k == Effect::kAddRelu || k == Effect::kAddRelu6 || k == Effect::kAddSilu;
template <Effect k>
inline constexpr bool kAtMost6 = k == Effect::kRelu6 || k == Effect::kAddRelu6;
template <Effect k>
inline constexpr bool kAtLeast0 = kAtMost6<k> || k == Effect::kRelu || k == Effect::kAddRelu;

template <Effect kEffect>
__device__ inline float after(float sum, float source) {
  if constexpr (kAdds<kEffect>) sum += source;
  if constexpr (kAtLeast0<kEffect>) sum = sum < 0.0f ? 0.0f : sum;
  if constexpr (kAtMost6<kEffect>) sum = sum > 6.0f ? 6.0f : sum;
  if constexpr (kEffect == Effect::kSilu || kEffect == Effect::kAddSilu) {
    sum = __fdividef(sum, 1.0f + __expf(-sum));
  }
  if (kEffect == Effect::kMask) sum = source < 0.0f ? 0.0f : sum;
  if (kEffect == Effect::kStrictMask) sum = source <= 0.0f ? 0.0f : sum;
  return sum;
}

// 32 columns of a row, from `column` on: `sums` are this lane's two of each part of 8.  All lanes of a
// warp come here, `inside` or not.
template <typename Result, Effect kEffect>
__device__ inline void write32(Result* row, const Result* source, int column, int channels, bool inside,
                               const float (&sums)[4][2]) {
  constexpr bool kReads =
      kAdds<kEffect> || kEffect == Effect::kMask || kEffect == Effect::kStrictMask;
  const int lane = threadIdx.x % 4;
  if constexpr (sizeof(Result) == 2) {
    const int mine = column + 8 * lane;
    const bool here = inside && mine < channels;
    uint32_t read[4] = {0, 0, 0, 0}, out[4];
    if constexpr (kReads) {
      if (here) {
        const uint4 four = *reinterpret_cast<const uint4*>(source + mine);
        read[0] = four.x, read[1] = four.y, read[2] = four.z, read[3] = four.w;
      }
      exchange(read);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      out[i] = packed<Result>(after<kEffect>(sums[i][0], unpacked<Result>(read[i], 0)),
                              after<kEffect>(sums[i][1], unpacked<Result>(read[i], 1)));
    }
    exchange(out);
    if (here) *reinterpret_cast<uint4*>(row + mine) = make_uint4(out[0], out[1], out[2], out[3]);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int mine = column + 8 * i + 2 * lane;
      if (!inside || mine >= channels) continue;
      float2 read = make_float2(0.0f, 0.0f);
      if constexpr (kReads) read = *reinterpret_cast<const float2*>(source + mine);
      *reinterpret_cast<float2*>(row + mine) =
          make_float2(after<kEffect>(sums[i][0], read.x), after<kEffect>(sums[i][1], read.y));
    }
  }
}

// The sums of a tile's columns from 8 * `kFrom` to 8 * `kTo`, which begin a part of `wide` columns of a
// tap.  `coordinates` are those of this thread's sums in the tile; both are (2, 2, N/8) in each
// instruction: two columns, two rows 8 apart, parts of 8 columns.
template <typename Result, Effect kEffect, bool kBias, bool kStrided, int kFrom, int kTo, class Sums,
          class Coordinates>
__device__ void write(const Target& to, int first_row, int part_of_columns, int slice, const Sums& sums,
                      const Coordinates& coordinates) {
  const int tap = part_of_columns / to.channel_tiles;
  const int first = (part_of_columns - tap * to.channel_tiles) * (8 * (kTo - kFrom));
  const int64_t before = int64_t{tap} * to.channels + slice * to.slice;
  Result* result = static_cast<Result*>(to.result) + before;
  const Result* source = static_cast<const Result*>(to.source) + before;
  static_assert((kTo - kFrom) % 4 == 0, "32 columns are written at once");
  CUTLASS_PRAGMA_UNROLL
  for (int m = 0; m < cute::size<1>(sums); ++m) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + int(cute::get<0>(coordinates(cute::make_coord(0, half, 0), m, 0)));
      const bool inside = row < to.rows;
      int64_t at = row * to.pitch;
      int left_w = 0, left_h = 0;  // pixels of the line from here on, and lines of the image
      if constexpr (kStrided) {
        const int line = row / to.wide, image = line / to.high;
        const int w = to.first_w + (row - line * to.wide) * to.stride_w;
        const int h = to.first_h + (line - image * to.high) * to.stride_h;
        at = ((int64_t{image} * to.h + h) * to.w + w) * to.pitch;
        left_w = to.w - w;
        left_h = to.h - h;
      }
      CUTLASS_PRAGMA_UNROLL
      for (int part = kFrom; part < kTo; part += 4) {
        float four[4][2];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 8; ++i) {
          four[i / 2][i % 2] = sums(cute::make_coord(i % 2, half, part + i / 2), m, 0);
        }
        write32<Result, kEffect>(result + at, source + (kBias ? 0 : at), first + 8 * (part - kFrom),
                                 to.channels, inside, four);
      }
      if constexpr (kStrided) {
        const float none[4][2] = {};
        for (int more = 1; more < to.fill_w * to.fill_h; ++more) {
          const int down = more / to.fill_w, right = more - down * to.fill_w;
          const bool there = inside && down < left_h && right < left_w;
          const int64_t next = at + (int64_t{down} * to.w + right) * to.pitch;
          CUTLASS_PRAGMA_NO_UNROLL
          for (int part = 0; part < kTo - kFrom; part += 4) {
            write32<Result, kEffect>(result + next, source + (kBias ? 0 : next), first + 8 * part,
                                     to.channels, there, none);
          }
        }
      }
    }
  }
}

}  // namespace
