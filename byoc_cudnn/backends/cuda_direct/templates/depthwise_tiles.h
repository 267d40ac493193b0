// ---- depthwise, channels last: what kernels that slide down rows share -------------------------------------
//
// A thread has V channels and a strip of columns, and slides down some rows: each row that it reads is
// used for all results that it reaches, and is the next one's while that computes.  Items are strips:
// of (image, chunk of rows, strip), the strip varying fastest.  Threads of a block have `packs` side by
// side, of the channels, and `lanes` items.

#include <algorithm>

namespace {

template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<2> {
  using Type = unsigned short;
};
template <>
struct BitsOf<4> {
  using Type = unsigned;
};
template <>
struct BitsOf<8> {
  using Type = uint2;
};
template <>
struct BitsOf<16> {
  using Type = uint4;
};

// Elements side by side as they lie in memory, in accesses of at most 16 bytes.
template <typename T, int V>
struct Raw {
  static constexpr int kBytes = V * sizeof(T) < 16 ? V * sizeof(T) : 16;
  static constexpr int kParts = V * sizeof(T) / kBytes;
  using Bits = typename BitsOf<kBytes>::Type;
  Bits bits[kParts];

  __device__ __forceinline__ void zero() { memset(bits, 0, sizeof(bits)); }
  __device__ __forceinline__ void read(const T* at) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) bits[i] = __ldg(reinterpret_cast<const Bits*>(at) + i);
  }
  __device__ __forceinline__ void write(T* at) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) reinterpret_cast<Bits*>(at)[i] = bits[i];
  }
  __device__ __forceinline__ void widened(float (&to)[V]) const {
    T value[V];
    memcpy(value, bits, sizeof(bits));
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = wide(value[v]);
  }
  __device__ __forceinline__ void narrowed(const float (&from)[V]) {
    T value[V];
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = narrow<T>(from[v]);
    memcpy(bits, value, sizeof(bits));
  }
};

constexpr int kMostPacks = 64;  // of a block, side by side

// How threads and blocks are laid over packs of channels and items.
struct Cover {
  int packs, lanes;    // of a block
  int groups;          // of packs, that cover all channels
  int strips, chunks;  // of an image
  int items;           // of all images
};

inline int divided(int a, int b) { return (a + b - 1) / b; }

// Few idle threads, and rows of memory that are as long as can be.
inline Cover cover_of(int images, int channels, int strips, int chunks, int vector, int most) {
  const int packs = channels / vector;
  Cover best{};
  double score = 0;
  for (int side = 1; side <= std::min({packs, kMostPacks, most}); ++side) {
    const int groups = divided(packs, side), lanes = most / side, threads = lanes * side;
    const double used = static_cast<double>(packs) / (groups * side) * threads /
                        (32.0 * divided(threads, 32)) * (0.75 + 0.25 * threads / most);
    const double length = std::min(1.0, 0.5 + side / 32.0);
    if (used * length > score * 1.001) {
      score = used * length;
      best = {side, lanes, groups, strips, chunks, images * strips * chunks};
    }
  }
  return best;
}

// Into how many rows a strip is cut: `ramp` steps more are taken for each, and a thread's beginning
// takes as long as some.  `resident` threads run at once on an H100 or H200; what is chosen is of the
// problem and not of the GPU that is here, and so are the bits of sums.
constexpr int kMultiprocessors = 132, kBegin = 3;

inline int chunk_of(int images, int rows, int strips, int packs, int ramp, int resident) {
  int best = rows;
  double least = 0;
  for (int cut = 1; cut <= rows; ++cut) {
    const int chunk = divided(rows, cut);
    const double threads = 1.0 * images * strips * divided(rows, chunk) * packs;
    const double waves = threads / resident;
    const double cost = (chunk + ramp + kBegin) * (waves < 1 ? 1 : waves + 0.3);
    if (cut == 1 || cost < 0.99 * least) least = cost, best = chunk;
  }
  return best;
}

inline bool too_many(int64_t images, int64_t strips, int64_t chunks) {
  return images * strips * chunks >= int64_t{1} << 30;
}

// Where an item is.
struct Item {
  int image, chunk, strip;

  __device__ __forceinline__ Item(int item, const Cover& cover) {
    const unsigned all = static_cast<unsigned>(item) / cover.strips;
    strip = item - static_cast<int>(all) * cover.strips;
    image = static_cast<int>(all / cover.chunks);
    chunk = static_cast<int>(all) - image * cover.chunks;
  }
};

// The filters of a block's channels, in shared memory by taps: read once, in order, then turned.
template <int kTaps, bool kFlip, typename T>
__device__ __forceinline__ void stage(T* taps, const T* weight, int begin, int count, int channels,
                                      int threads) {
  const int64_t all = int64_t{channels} * kTaps, first = int64_t{begin} * kTaps;
  for (int i = threadIdx.x; i < count * kTaps && first + i < all; i += threads) {
    const int tap = i % kTaps;
    taps[(kFlip ? kTaps - 1 - tap : tap) * count + i / kTaps] = weight[first + i];
  }
}

template <int kTaps, int V, typename T>
__device__ __forceinline__ void taken(float (&to)[kTaps][V], const T* taps, int count, int channel) {
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    Raw<T, V> raw;
    memcpy(raw.bits, __builtin_assume_aligned(taps + tap * count + channel, Raw<T, V>::kBytes),
           sizeof(raw.bits));
    raw.widened(to[tap]);
  }
}

// Asks for bytes of shared memory, zeros where nothing is there.
template <int kBytes>
__device__ __forceinline__ void copy(void* to, const void* from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(kBytes),
               "r"(there ? kBytes : 0)
               : "memory");
#else
  if (there) {
    memcpy(to, from, kBytes);
  } else {
    memset(to, 0, kBytes);
  }
#endif
}

// All but the last `kLeft` groups of copies of this thread are there.
template <int kLeft>
__device__ __forceinline__ void arrived() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

__device__ __forceinline__ void grouped() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Rows of N packs that a thread reads one after another, C elements apart, K in a step: with D = 0 one
// row ahead, in registers; else D - 1 steps ahead, in shared memory that is the thread's own, so nobody
// waits for another.  `Rows` gives a row's first pack and which of its packs exist, as bits.
template <int D, int K, int N, typename T, int V, int B>
struct Feed {
  using Pack = Raw<T, V>;
  static constexpr int kShared = D == 0 ? 1 : D * K * N * B;  // packs of a block

  Pack next[D == 0 ? N : 1];
  Pack* ring;

  template <typename Rows>
  __device__ __forceinline__ void ask(const Rows& rows, int u, int64_t apart) {
    unsigned there;
    const T* const at = rows(u, there);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool one = there >> i & 1;
      if constexpr (D == 0) {
        if (one) {
          next[i].read(at + i * apart);
        } else {
          next[i].zero();
        }
      } else {
        const T* const from = one ? at + i * apart : rows.base;
        auto* const to = reinterpret_cast<char*>(ring + (u % (D * K) * N + i) * B);
        constexpr int kBytes = Pack::kBytes < 4 ? 4 : Pack::kBytes;
#pragma unroll
        for (int part = 0; part < Pack::kParts; ++part) {
          copy<kBytes>(to + part * kBytes, reinterpret_cast<const char*>(from) + part * kBytes, one);
        }
      }
    }
  }

  // The rows of step t, where they are copied; a group of copies has those of all feeds.
  template <typename Rows>
  __device__ __forceinline__ void ask_step(const Rows& rows, int t, int64_t apart) {
    if constexpr (D > 0) {
#pragma unroll
      for (int j = 0; j < K; ++j) ask(rows, t * K + j, apart);
    }
  }

  template <typename Rows>
  __device__ __forceinline__ void start(const Rows& rows, int64_t apart, Pack* shared) {
    if constexpr (D == 0) {
      ask(rows, 0, apart);
    } else {
      ring = shared + threadIdx.x;
    }
  }

  // Row u; rows come in their order.
  template <typename Rows>
  __device__ __forceinline__ void take(Pack (&row)[N], const Rows& rows, int u, int64_t apart) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (D == 0) {
        row[i] = next[i];
      } else {
        row[i] = ring[(u % (D * K) * N + i) * B];
      }
    }
    if constexpr (D == 0) ask(rows, u + 1, apart);
  }
};

// Asks for the first D - 1 steps' rows; and, when a step begins, waits for its rows and asks for others.
template <int D, typename Ask>
__device__ __forceinline__ void ask_first(const Ask& ask) {
#pragma unroll
  for (int t = 0; t < D - 1; ++t) {
    ask(t);
    grouped();
  }
}

template <int D, typename Ask>
__device__ __forceinline__ void begin_step(const Ask& ask, int t) {
  if constexpr (D > 0) {
    arrived<(D > 2 ? D - 2 : 0)>();
    ask(t + D - 1);
    grouped();
  }
}

// Of an image: rows of `line` elements, of which those before `end` from row `begin` on exist.
template <typename T>
struct RowsOf {
  const T* base;   // somewhere that may be read
  const T* first;  // the first pack of row 0
  int64_t line;
  int begin, needed, all;  // row u is `begin + u`, if that is one of `all` and u < needed
  unsigned columns;

  __device__ __forceinline__ const T* operator()(int u, unsigned& there) const {
    const int row = begin + u;
    there = u < needed && row >= 0 && row < all ? columns : 0u;
    return first + row * line;
  }
};

// Which of N columns from `first` on exist.
template <int N>
__device__ __forceinline__ unsigned existing(int first, int columns) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) bits |= (first + i >= 0 && first + i < columns ? 1u : 0u) << i;
  return bits;
}

template <typename After, typename Out, int V>
__device__ __forceinline__ void put(const RelayWgradDirectCall& z, int64_t at, float (&value)[V],
                                    const float (&bias)[V]) {
  Raw<Out, V> raw;
  float operand[V];
  if constexpr (After::kWhole) {
    raw.read(static_cast<const Out*>(z.source) + at);
    raw.widened(operand);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    value[v] = After::of(value[v], After::kWhole ? operand[v] : After::kPerChannel ? bias[v] : 0.f);
  }
  raw.narrowed(value);
  raw.write(static_cast<Out*>(z.result) + at);
}

inline bool no_workspace(const RelayWgradDirectCall& z) {
  if (z.wanted != nullptr) *z.wanted = 0;
  return z.wanted != nullptr;
}

}  // namespace
