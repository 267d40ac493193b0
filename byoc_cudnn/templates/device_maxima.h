// ---- maxima of windows, channel by channel ---------------------------------------------------------------
//
// The first maximum counts; a NaN is one, and of several the last, as in PyTorch.

namespace {

// The taps of a pack.
template <int V>
struct alignas(V) Taps {
  uint8_t of[V];
  // Else they are none.
  __device__ void keep_if(bool there) {
    using Word = std::conditional_t<V % 4 == 0, uint32_t, uint16_t>;
    Word words[V / sizeof(Word)];
    memcpy(words, of, V);
#pragma unroll
    for (Word& word : words) word |= there ? 0 : static_cast<Word>(~0u);
    memcpy(of, words, V);
  }
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

  // `there`: else it counts for nothing.
  __device__ void see(const Pack<T, V>& pack, int tap, bool there = true) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Sum<T> now = wide(pack.value[i]);
      if (there && (!any_ || now > wide(value.value[i]) || now != now)) {
        value.value[i] = pack.value[i];
        taps_.of[i] = static_cast<uint8_t>(tap);
      }
    }
    any_ |= there;
  }
  // What another has seen, which comes behind, `first` taps further on.
  __device__ void see(const Best& more, int first) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Sum<T> now = wide(more.value.value[i]);
      if (more.any_ && (!any_ || now > wide(value.value[i]) || now != now)) {
        value.value[i] = more.value.value[i];
        taps_.of[i] = static_cast<uint8_t>(more.taps_.of[i] + first);
      }
    }
    any_ |= more.any_;
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

  __device__ void see(const Pack<T, 8>& pack, int tap, bool there = true) {
    const unsigned taps = 0x10001u * static_cast<unsigned>(tap);
    see_some(pack, there, [&](int) { return taps; });
  }
  // What another has seen, which comes behind, `first` taps further on.
  __device__ void see(const BestOfPairs& more, int first) {
    const unsigned further = 0x10001u * static_cast<unsigned>(first);
    see_some(more.value, more.any_, [&](int i) { return more.taps_[i] + further; });
  }
  __device__ Taps<8> taps() const {
    const unsigned bytes[2] = {__byte_perm(taps_[0], taps_[1], 0x6420),
                               __byte_perm(taps_[2], taps_[3], 0x6420)};
    Taps<8> out;
    memcpy(&out, bytes, sizeof(bytes));
    return out;
  }

 private:
  // `taps(i)` : of the pair `i`.
  template <typename TapsOf>
  __device__ void see_some(const Pack<T, 8>& pack, bool there, TapsOf taps) {
    const unsigned asked = there ? 0xffffffffu : 0, first = any_ ? 0 : 0xffffffffu;
    unsigned now[4], best[4];
    memcpy(now, &pack, sizeof(now));
    memcpy(best, &value, sizeof(best));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Pair a, b;
      memcpy(&a, &now[i], sizeof(a));
      memcpy(&b, &best[i], sizeof(b));
      const unsigned taken = (__hgt2_mask(a, b) | __hneu2_mask(a, a) | first) & asked;
      best[i] = (taken & now[i]) | (~taken & best[i]);
      taps_[i] = (taken & taps(i)) | (~taken & taps_[i]);
    }
    memcpy(&value, best, sizeof(best));
    any_ |= there;
  }

  bool any_ = false;
  unsigned taps_[4] = {};
};

template <>
struct Best<__half, 8> : BestOfPairs<__half, __half2> {};

template <>
struct Best<__nv_bfloat16, 8> : BestOfPairs<__nv_bfloat16, __nv_bfloat162> {};

// A pixel's gradient: of the windows that are seen those whose maximum it is; rounded once.
template <typename T, int V>
struct Gathered {
  __device__ void see(const Pack<T, V>& g, const Taps<V>& taps, int tap) {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      if (taps.of[c] == tap) sum_[c] += wide(g.value[c]);
    }
  }
  __device__ Pack<T, V> value() const {
    Pack<T, V> out;
#pragma unroll
    for (int c = 0; c < V; ++c) out.value[c] = narrow<T>(sum_[c]);
    return out;
  }

 private:
  Sum<T> sum_[V] = {};
};

// Two channels an instruction: taps are compared as halves, of which they are the least.  A sum of two is
// rounded as a float's would be; more are floats until they are rounded.
template <typename T, typename Pair>
struct GatheredOfPairs {
  __device__ void see(const Pack<T, 8>& g, const Taps<8>& taps, int tap) {
    unsigned bits[4], bytes[2];
    memcpy(bits, &g, sizeof(bits));
    memcpy(bytes, &taps, sizeof(bytes));
    const unsigned wanted = 0x10001u * static_cast<unsigned>(tap);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned of_pair = __byte_perm(bytes[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
      __half2 a, b;
      memcpy(&a, &of_pair, sizeof(a));
      memcpy(&b, &wanted, sizeof(b));
      bits[i] &= __heq2_mask(a, b);
    }
    Pack<T, 8> chosen;
    memcpy(&chosen, bits, sizeof(bits));
    if (seen_ < 2) {
      pairs_[seen_] = chosen;
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (seen_ == 2) sum_[c] = wide(pairs_[0].value[c]) + wide(pairs_[1].value[c]);
        sum_[c] += wide(chosen.value[c]);
      }
    }
    ++seen_;
  }
  __device__ Pack<T, 8> value() const {
    Pack<T, 8> out;
    if (seen_ > 2) {
#pragma unroll
      for (int c = 0; c < 8; ++c) out.value[c] = narrow<T>(sum_[c]);
    } else if (seen_ == 2) {
      Pair one[4], two[4];
      memcpy(one, &pairs_[0], sizeof(one));
      memcpy(two, &pairs_[1], sizeof(two));
#pragma unroll
      for (int i = 0; i < 4; ++i) one[i] = __hadd2(one[i], two[i]);
      memcpy(&out, one, sizeof(out));
    } else if (seen_ == 1) {
      out = pairs_[0];
    } else {
      memset(&out, 0, sizeof(out));
    }
    return out;
  }

 private:
  int seen_ = 0;  // known where loops over windows are unrolled
  Pack<T, 8> pairs_[2];
  float sum_[8];
};

template <>
struct Gathered<__half, 8> : GatheredOfPairs<__half, __half2> {};

template <>
struct Gathered<__nv_bfloat16, 8> : GatheredOfPairs<__nv_bfloat16, __nv_bfloat162> {};

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
