// ---- maxima of windows, channel by channel ---------------------------------------------------------------
//
// The first maximum counts; a NaN is one, and of several the last, as in PyTorch.

namespace {

// The taps of a pack.
template <int V>
struct alignas(V) Taps {
  uint8_t of[V];
};

template <bool whole, int V>
__device__ inline void load_taps(Taps<V>& taps, const uint8_t* at, int64_t remain) {
  if constexpr (whole) {
    taps = *reinterpret_cast<const Taps<V>*>(at);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) taps.of[i] = i < remain ? at[i] : 0;
  }
}

template <bool whole, int V>
__device__ inline void store_taps(uint8_t* at, const Taps<V>& taps, int64_t remain) {
  if constexpr (whole) {
    *reinterpret_cast<Taps<V>*>(at) = taps;
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < remain) at[i] = taps.of[i];
    }
  }
}

// The maximum of what was seen, and the tap of each channel's.
template <typename T, int V>
struct Best {
  Pack<T, V> value;

  __device__ void see(const Pack<T, V>& pack, int tap) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Sum<T> now = wide(pack.value[i]);
      if (!any_ || now > wide(value.value[i]) || now != now) {
        value.value[i] = pack.value[i];
        taps_.of[i] = static_cast<uint8_t>(tap);
      }
    }
    any_ = true;
  }
  __device__ const Taps<V>& taps() const { return taps_; }

 private:
  bool any_ = false;
  Taps<V> taps_;
};

// Two channels an instruction, for both half precisions: masks choose values and taps.
template <typename T, typename Pair>
struct BestOfPairs {
  Pack<T, 8> value;

  __device__ void see(const Pack<T, 8>& pack, int tap) {
    unsigned now[4], best[4];
    memcpy(now, &pack, sizeof(now));
    memcpy(best, &value, sizeof(best));
    const unsigned taps = 0x10001u * static_cast<unsigned>(tap);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Pair a, b;
      memcpy(&a, &now[i], sizeof(a));
      memcpy(&b, &best[i], sizeof(b));
      const unsigned taken = any_ ? __hgt2_mask(a, b) | __hneu2_mask(a, a) : 0xffffffffu;
      best[i] = (taken & now[i]) | (~taken & best[i]);
      taps_[i] = (taken & taps) | (~taken & taps_[i]);
    }
    memcpy(&value, best, sizeof(best));
    any_ = true;
  }
  __device__ Taps<8> taps() const {
    const unsigned bytes[2] = {__byte_perm(taps_[0], taps_[1], 0x6420),
                               __byte_perm(taps_[2], taps_[3], 0x6420)};
    Taps<8> out;
    memcpy(&out, bytes, sizeof(bytes));
    return out;
  }

 private:
  bool any_ = false;
  unsigned taps_[4] = {};
};

template <>
struct Best<__half, 8> : BestOfPairs<__half, __half2> {};

template <>
struct Best<__nv_bfloat16, 8> : BestOfPairs<__nv_bfloat16, __nv_bfloat162> {};

// The first window that reaches a pixel, or would.
__device__ inline int first_of(int pixel, int before, int taken, int stride) {
  const int past = pixel + before - taken + stride;
  return past < stride ? 0 : past / stride;
}

// A pixel's gradient: of the windows that reach it, in their order, those whose maximum it is.  `z` has
// p × q windows of c channels, which begin `top` and `left` of the image; `taps_of(taps, p, q)` gets a
// window's taps.
template <int R, int S, int SR, int SS, bool whole, typename T, int V, typename Windows,
          typename TapsOf>
__device__ inline void gather_from(Pack<T, V>& out, const T* dy, const Windows& z, int64_t n, int h,
                                   int w, int64_t channel, TapsOf taps_of) {
  Sum<T> sum[V] = {};
  const int p1 = first_of(h, z.top, R, SR), q1 = first_of(w, z.left, S, SS);
#pragma unroll
  for (int a = 0; a < (R + SR - 1) / SR; ++a) {
    const int p = p1 + a, r = h + z.top - p * SR;
    if (r < 0 || p >= z.p) continue;
#pragma unroll
    for (int b = 0; b < (S + SS - 1) / SS; ++b) {
      const int q = q1 + b, s = w + z.left - q * SS;
      if (s < 0 || q >= z.q) continue;
      Pack<T, V> g;
      load<whole>(g, dy + ((n * z.p + p) * z.q + q) * z.c + channel, z.c - channel);
      Taps<V> taps;
      taps_of(taps, p, q);
#pragma unroll
      for (int c = 0; c < V; ++c) {
        if (taps.of[c] == r * S + s) sum[c] += wide(g.value[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < V; ++c) out.value[c] = narrow<T>(sum[c]);
}

}  // namespace
