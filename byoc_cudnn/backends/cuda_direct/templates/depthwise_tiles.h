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

// Few idle threads, and rows of memory that are long and, where blocks share a pixel's, begin and end where
// sectors of 32 bytes do: of a sector that two blocks share, half of what is moved is wasted.
inline Cover cover_of(int images, int channels, int strips, int chunks, int vector, int most, int size) {
  const int packs = channels / vector;
  Cover best{};
  double score = 0;
  for (int side = 1; side <= std::min({packs, kMostPacks, most}); ++side) {
    const int groups = divided(packs, side), lanes = most / side, threads = lanes * side;
    const double used = static_cast<double>(packs) / (groups * side) * threads /
                        (32.0 * divided(threads, 32)) * (0.75 + 0.25 * threads / most);
    const double length = std::min(1.0, 0.5 + side / 32.0);
    const int row = side * vector * size;
    const bool apart = groups > 1 && (row % 32 != 0 || channels * size % 32 != 0);
    const double whole = apart ? row / (32.0 * divided(row, 32) + 24) : 1.0;
    if (used * length * whole > score * 1.001) {
      score = used * length * whole;
      best = {side, lanes, groups, strips, chunks, images * strips * chunks};
    }
  }
  return best;
}

// Into how many rows a strip is cut: `ramp` steps more are taken for each, and a thread's beginning
// takes as long as some.  `fit` blocks run at once on a multiprocessor, and one alone does not keep it
// busy.  What is chosen is of the problem and not of the GPU that is here (numbers are an H100's and an
// H200's), and so are the bits of sums.
constexpr int kMultiprocessors = 132, kBegin = 3;
constexpr double kAlone = 1.3;

inline double load_of(int64_t blocks, int fit) {
  const int64_t each = (blocks + kMultiprocessors - 1) / kMultiprocessors, left = each % fit;
  return static_cast<double>(each / fit) * std::max<double>(fit, kAlone) +
         (left > 0 ? std::max<double>(static_cast<double>(left), kAlone) : 0.0);
}

inline int chunk_of(int images, int rows, int strips, int packs, int ramp, int fit, int threads) {
  int best = rows;
  double least = 0;
  for (int cut = 1; cut <= rows; ++cut) {
    const int chunk = divided(rows, cut);
    const int64_t all = int64_t{images} * strips * divided(rows, chunk) * packs;
    const double cost = (chunk + ramp + kBegin) * load_of((all + threads - 1) / threads, fit);
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

// Elements in a row, asked for in pieces as large as where they lie allows; they come with the group
// of copies that is made next.  Those that have no 4 bytes of their own are read here.
template <typename T>
__device__ __forceinline__ void stage(T* to, const T* from, int count, int threads) {
  const auto at = reinterpret_cast<uintptr_t>(from);
  const int size = at % 16 == 0 ? 16 : at % 4 == 0 ? 4 : 0, bytes = count * static_cast<int>(sizeof(T));
  const int pieces = size > 0 ? bytes / size : 0;
  auto* const shared = reinterpret_cast<char*>(to);
  const auto* const global = reinterpret_cast<const char*>(from);
  for (int i = threadIdx.x; i < pieces; i += threads) {
    if (size == 16) {
      copy<16>(shared + i * 16, global + i * 16, true);
    } else {
      copy<4>(shared + i * 4, global + i * 4, true);
    }
  }
  for (int i = pieces * size / static_cast<int>(sizeof(T)) + threadIdx.x; i < count; i += threads) {
    to[i] = from[i];
  }
}

// A thread's filters, which lie one after another; turned around with `kFlip`.
template <int kTaps, int V, bool kFlip, typename T>
__device__ __forceinline__ void taken(float (&to)[kTaps][V], const T* taps) {
  Raw<T, V> raw[kTaps];
  const auto* const bits = static_cast<const typename Raw<T, V>::Bits*>(
      __builtin_assume_aligned(taps, Raw<T, V>::kBytes));
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
#pragma unroll
    for (int part = 0; part < Raw<T, V>::kParts; ++part) {
      raw[i].bits[part] = bits[i * Raw<T, V>::kParts + part];
    }
  }
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    float value[V];
    raw[i].widened(value);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int at = i * V + v, tap = at % kTaps;  // the elements are [v][tap]
      to[kFlip ? kTaps - 1 - tap : tap][at / kTaps] = value[v];
    }
  }
}

// Of an image: rows of `line` elements, of which those before `end` from row `begin` on exist.
template <typename T>
struct RowsOf {
  const T* at;  // the first pack of the next row
  int64_t line;
  int next, all;  // it exists if it is one of 0 to all - 1
  unsigned columns;

  // `first`: of an image's row 0; rows from `begin` on, `needed` of them, if they are among `rows`.
  __device__ __forceinline__ RowsOf(const T* first, int64_t line, int begin, int needed, int rows,
                                    unsigned columns)
      : at(first + begin * line), line(line), next(min(begin, 0)),
        all(max(0, min(needed, rows - begin) + min(begin, 0))), columns(columns) {}

  // Its packs that exist, as bits; `at` moves on.
  __device__ __forceinline__ unsigned move(const T*& row) {
    row = at;
    at += line;
    return static_cast<unsigned>(next++) < static_cast<unsigned>(all) ? columns : 0u;
  }
};

// Rows of N packs that a thread reads one after another, C elements apart, K in a step: with D = 0 one
// row ahead, in registers; else D - 1 steps ahead, in shared memory that is the thread's own, so nobody
// waits for another.
template <int D, int K, int N, typename T, int V, int B, int C>
struct Feed {
  using Pack = Raw<T, V>;
  static constexpr int kShared = D == 0 ? 1 : D * K * N * B;  // packs of a block

  RowsOf<T> rows;
  Pack next[D == 0 ? N : 1];
  Pack *ring, *row;
  const T* from;
  unsigned there;

  __device__ __forceinline__ Feed(const RowsOf<T>& rows, Pack* shared) : rows(rows) {
    ring = shared + threadIdx.x;
    if constexpr (D == 0) {
      there = this->rows.move(from);
#pragma unroll
      for (int i = 0; i < N; ++i) ask(i);
    }
  }

  __device__ __forceinline__ void ask(int i) {
    if (there >> i & 1) {
      next[D == 0 ? i : 0].read(from + i * C);
    } else {
      next[D == 0 ? i : 0].zero();
    }
  }

  // The rows of step t, where they are copied; a group of copies has those of all feeds.
  __device__ __forceinline__ void ask_step(int t) {
    if constexpr (D > 0) {
      Pack* const to = ring + t % D * (K * N * B);
#pragma unroll
      for (int j = 0; j < K; ++j) {
        there = rows.move(from);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          constexpr int kBytes = Pack::kBytes < 4 ? 4 : Pack::kBytes;
#pragma unroll
          for (int part = 0; part < Pack::kParts; ++part) {
            copy<kBytes>(reinterpret_cast<char*>(to + (j * N + i) * B) + part * kBytes,
                         reinterpret_cast<const char*>(from + i * C) + part * kBytes, there >> i & 1);
          }
        }
      }
    }
  }

  // Row j of step t comes next; then its packs, in their order, each once.
  __device__ __forceinline__ void begin_row(int t, int j) {
    if constexpr (D == 0) {
      there = rows.move(from);
    } else {
      row = ring + t % D * (K * N * B) + j * N * B;
    }
  }

  __device__ __forceinline__ void take(float (&x)[V], int i) {
    if constexpr (D == 0) {
      next[i].widened(x);
      ask(i);
    } else {
      row[i * B].widened(x);
    }
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

// Which of N columns from `first` on exist.
template <int N>
__device__ __forceinline__ unsigned existing(int first, int columns) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) bits |= (first + i >= 0 && first + i < columns ? 1u : 0u) << i;
  return bits;
}

// Computed whether it is there or not, so that only the access itself depends on it.
template <typename After, typename Out, int V>
__device__ __forceinline__ void put(Out* to, const Out* source, bool there, float (&value)[V],
                                    const float (&bias)[V]) {
  Raw<Out, V> raw;
  float operand[V];
  if constexpr (After::kWhole) {
    raw.zero();
    if (there) raw.read(source);
    raw.widened(operand);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    value[v] = After::of(value[v], After::kWhole ? operand[v] : After::kPerChannel ? bias[v] : 0.f);
  }
  raw.narrowed(value);
  if (there) raw.write(to);
}

inline bool no_workspace(const RelayWgradDirectCall& z) {
  if (z.wanted != nullptr) *z.wanted = 0;
  return z.wanted != nullptr;
}

}  // namespace
