// ---- rows of channels: what the kernels of both directions share -------------------------------------
//
// A block has `width` threads side by side, each with a pack of V neighbouring channels, 16 bytes, and
// 256 / width rows of them, all of one image.  It takes every gridDim.y-th chunk of its rows, U rows a
// thread and chunk, whose loads are all under way before the first is used.  Which rows a thread adds, and in which order sums are added, is
// a matter of sizes and of the device's size alone, so a second run gives the same bits.

// Measured (`benchmarks.gpu_norm_tries`): rows of a thread that are read together; blocks of a
// multiprocessor that registers are sparing enough for, and that the passes which write get.
#ifndef RW_NORM_UNROLL
#define RW_NORM_UNROLL 8
#endif
#ifndef RW_NORM_RESIDENT
#define RW_NORM_RESIDENT 2
#endif
#ifndef RW_NORM_WRITERS
#define RW_NORM_WRITERS 32
#endif

namespace {

constexpr int kUnroll = RW_NORM_UNROLL, kResident = RW_NORM_RESIDENT, kWriters = RW_NORM_WRITERS;

// Written out, so that both directions round alike whatever the compiler would contract.
__device__ inline float less(float a, float b) { return __fsub_rn(a, b); }
__device__ inline double less(double a, double b) { return __dsub_rn(a, b); }
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float times_plus(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double times_plus(double a, double b, double c) { return __fma_rn(a, b, c); }

// Values of one a channel, in accesses of 16 bytes: one by one, a warp's loads are of as many lines of the
// first-level cache as a thread has rows.
template <int V, typename A>
__device__ inline void load_aligned(A (&to)[V], const A* from) {
  constexpr int kEach = 16 / sizeof(A);
  static_assert(V % kEach == 0);
#pragma unroll
  for (int i = 0; i < V; i += kEach) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from + i));
    memcpy(to + i, &bits, sizeof(bits));
  }
}

// The same wherever they lie; of channels that are not there zeros.
template <int V, typename A>
__device__ inline void load_channels(A (&to)[V], const A* from, int64_t left) {
  if (left >= V && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    load_aligned(to, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = i < left ? __ldg(from + i) : A(0);
}

// A pack of one tensor becomes the sum of two, rounded as if it were made apart.
template <typename T, int V>
__device__ inline void add(Pack<T, V>& to, const Pack<T, V>& more) {
#pragma unroll
  for (int i = 0; i < V; ++i) to.value[i] = narrow<T>(wide(to.value[i]) + wide(more.value[i]));
}

// Division by a number that is known when a kernel is launched, of numbers below 2^31.
struct Quotient {
  unsigned by, factor, shift;
  __host__ __device__ explicit Quotient(int64_t d) : by(static_cast<unsigned>(d)), factor(0), shift(0) {
    while ((uint64_t{1} << shift) < by) ++shift;
    factor = static_cast<unsigned>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - by)) / by + 1);
  }
  __device__ unsigned of(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

// How a call's rows and channels are shared out.  `grouped`: statistics are those of groups of an image's
// channels, else those of a batch, one image whose channels each are a group.  `folded`: rows may be side
// by side.  Both are told when the code is compiled: as numbers that are read, passes took 8 to 13 % more.
template <bool grouped, bool folded>
struct Shape {
  static constexpr bool kGrouped = grouped, kFolded = folded;
  int64_t images, rows, channels;  // rows: of an image
  int64_t group;                   // channels that share statistics
  int64_t chunks;                  // of an image's rows
  int width;                       // threads side by side, a power of two
  int blocks;                      // over an image's rows
  int tiles;                       // blocks side by side, for an image
  int64_t packs;                   // of a row
  int64_t fold = 1;                // rows that are one here: a channel is there so many times
  Quotient by_fold = Quotient(1);
  // Quotients that no thread takes: of 64 bits, each is as long as a row's way from memory.
  int64_t own = channels;        // channels of one of them
  int64_t each = 0, missing = 0;  // chunks of a block; rows that the last chunk is short of
  int longer = 0, last = 0;      // blocks that have one chunk more; the block of the last chunk

  // What a channel has all values of.
  __host__ __device__ int64_t real() const { return folded ? own : channels; }
  __host__ __device__ int64_t folds() const { return folded ? fold : 1; }
  __host__ __device__ int height() const { return kThreads / width; }
  __host__ __device__ int64_t chunk_rows() const { return int64_t{height()} * kUnroll; }
  // At most that many; all take the same number of chunks, or one less.
  __host__ void set_blocks(int64_t most) {
    most = most < 1 ? 1 : most > 65535 ? 65535 : most;
    const int64_t turns = (chunks + most - 1) / most;
    blocks = static_cast<int>((chunks + turns - 1) / turns);
    each = chunks / blocks;
    longer = static_cast<int>(chunks % blocks);
    last = static_cast<int>((chunks - 1) % blocks);
    missing = chunks * chunk_rows() - rows;
  }
  // Whether a channel is a group.
  __host__ __device__ bool is_single() const { return !grouped || group == 1; }
  __device__ int64_t image() const { return grouped ? blockIdx.x / tiles : 0; }
  __device__ int64_t tile() const { return grouped ? blockIdx.x % tiles : blockIdx.x; }
  // Where partial sums are, `each` of a channel: those of block `y` of an image.
  __device__ int64_t partial_at(int64_t image, int y, int each) const {
    return (image * blocks + y) * each * channels;
  }
  // Where the statistics of a channel of an image are.
  __device__ int64_t statistic_at(int64_t image, int64_t channel) const {
    return is_single() ? image * real() + channel : image * (channels / group) + channel / group;
  }
  // Where sums are of a channel's part: of the rows that are one each is a part of each block, `y`.
  struct Part {
    int y, side;
  };
  __device__ Part part(int i) const {
    const int y = folded ? static_cast<int>(by_fold.of(i)) : i;
    return {y, folded ? i - y * static_cast<int>(fold) : 0};
  }
  __device__ int parts() const { return blocks * static_cast<int>(folds()); }
  // From a channel's place in the first block's sums, `each` of a channel.
  __device__ int64_t part_at(const Part& part, int each) const {
    return int64_t{each} * part.y * channels + part.side * real();
  }
  // Rows that block `y` takes: every `blocks`-th chunk, of which the last may be short.
  __device__ int64_t rows_of(int y) const {
    return (each + (y < longer)) * chunk_rows() - (y == last ? missing : 0);
  }
};

using Plain = Shape<false, false>;

// The place of a thread.
struct Place {
  int64_t image;
  int row;  // of a chunk
  int64_t pack, channel;  // the first of the pack's
  int64_t left;           // channels from there on
  int side = 0;           // which of the rows that are one here the first channel is of
  int64_t column;         // where in that
  template <typename S>
  __device__ Place(const S& shape, int vector)
      : image(shape.image()), row(threadIdx.x / shape.width),
        pack(shape.tile() * shape.width + (threadIdx.x & (shape.width - 1))),
        channel(pack * vector), left(shape.channels - channel), column(channel) {
    if constexpr (S::kFolded) {
      const auto all = static_cast<unsigned>(channel), own = static_cast<unsigned>(shape.own);
      side = static_cast<int>(all / own);
      column = all % own;
    }
  }
};

// Where a thread's channels of a tensor's rows are: the tensor's own, or, of a `sliced` one, neighbours
// among a wider tensor's, whose rows are `stride` apart.
template <bool sliced>
struct Lanes {
  int64_t apart, first;
  template <typename S>
  __device__ Lanes(const S& shape, const Place& at, int64_t stride)
      : apart(shape.channels), first(at.channel) {
    if constexpr (sliced) {
      apart = stride * shape.folds();
      first = at.side * stride + at.column;
    }
  }
  __device__ int64_t at(int64_t row) const { return row * apart + first; }
};

// Values of one a channel, of a thread's channels; of those that are not there zeros.
template <int V, typename A, typename S>
__device__ inline void load_columns(A (&to)[V], const A* from, const Place& at, const S& shape) {
  if constexpr (S::kFolded) {
    if (at.column + V > shape.own && at.left > shape.own - at.column) {  // from one row into the next
      int64_t column = at.column;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        to[i] = i < at.left ? __ldg(from + column) : A(0);
        if (++column == shape.own) column = 0;
      }
      return;
    }
  }
  load_channels(to, from + at.column, at.left);
}

// The statistics of a thread's channels; of those that are not there zeros.
template <int V, typename A, typename S>
__device__ inline void load_statistics(A (&to)[V], const A* from, const Place& at, const S& shape) {
  if (shape.is_single()) {
    load_columns(to, from + at.image * shape.real(), at, shape);
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    to[i] = i < at.left ? __ldg(from + shape.statistic_at(at.image, at.channel + i)) : A(0);
  }
}

// Of all images' rows: calls `all(first row)` where U rows of the thread are all there, `single(row)` for each row of the
// chunk that is short, and where packs are not whole.  `backwards`: from the last chunk, which the pass
// before read last.
template <bool backwards, bool whole, typename S, typename All, typename Single>
__device__ inline void each_chunk(const S& shape, int row, All all, Single single) {
  const int64_t origin = shape.image() * shape.rows;
  for (int64_t i = blockIdx.y; i < shape.chunks; i += shape.blocks) {
    const int64_t chunk = backwards ? shape.chunks - 1 - i : i;
    const int64_t first = chunk * shape.chunk_rows() + row;
    if constexpr (whole) {
      if ((chunk + 1) * shape.chunk_rows() <= shape.rows) {
        all(origin + first);
        continue;
      }
    }
#pragma unroll 1
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + int64_t{u} * shape.height();
      if (at < shape.rows) single(origin + at);
    }
  }
}

// ---- activations: of what is normalized, and of its gradient ------------------------------------------

enum class Activation { kNone, kRelu, kRelu6, kLeakyRelu, kSilu, kGelu, kGeluTanh, kHardswish, kElu };

// 1 / (1 + exp(-v)) of what is stored as T.  In half by approximate functions, whose error its rounding
// hides: exp and a division in full are most of the instructions of a pass over half.
template <typename T>
__device__ inline Sum<T> sigmoid(Sum<T> v) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.f, 1.f + __expf(-v));
  return Sum<T>(1) / (Sum<T>(1) + exp(-v));
}

// exp(v), likewise.
template <typename T>
__device__ inline Sum<T> exponential(Sum<T> v) {
  if constexpr (sizeof(T) == 2) return __expf(v);
  return exp(v);
}

// u' and sigmoid(2 u) = (1 + tanh(u)) / 2 of GELU's u = root (v + cubic v^3).
template <typename T>
struct GeluTanh {
  Sum<T> rise, share;
  __device__ explicit GeluTanh(Sum<T> v) {
    using A = Sum<T>;
    constexpr A kRoot = A(0.79788456080286535588), kCubic = A(0.044715);
    rise = kRoot * (A(1) + A(3) * kCubic * v * v);
    share = sigmoid<T>(A(2) * kRoot * (v + kCubic * v * v * v));
  }
};

// The normal distribution's function.
template <typename A>
__device__ inline A below(A v) {
  return A(0.5) * (A(1) + erf(v * A(0.70710678118654752440)));
}

template <Activation act, typename T>
__device__ inline Sum<T> activated(Sum<T> v, Sum<T> alpha) {
  using A = Sum<T>;
  if constexpr (act == Activation::kRelu) return v < A(0) ? A(0) : v;  // NaN stays NaN
  if constexpr (act == Activation::kRelu6) return v < A(0) ? A(0) : v > A(6) ? A(6) : v;
  if constexpr (act == Activation::kLeakyRelu) return v > A(0) ? v : alpha * v;
  if constexpr (act == Activation::kSilu) return v * sigmoid<T>(v);
  if constexpr (act == Activation::kGelu) return v * below(v);
  if constexpr (act == Activation::kGeluTanh) return v * GeluTanh<T>(v).share;
  if constexpr (act == Activation::kHardswish) {
    return v <= A(-3) ? A(0) : v >= A(3) ? v : v * (v + A(3)) * A(1.0 / 6);
  }
  if constexpr (act == Activation::kElu) {
    if constexpr (sizeof(T) == 2) return v < A(0) ? alpha * (__expf(v) - A(1)) : v;
    return v < A(0) ? alpha * expm1(v) : v;
  }
  return v;
}

// Whether a gradient passes whole where `v` is stored: of what is stored, not of what it was rounded
// from.
template <Activation act, typename A>
__device__ inline bool passes(A v) {
  if constexpr (act == Activation::kRelu) return !(v <= A(0));
  if constexpr (act == Activation::kRelu6) return !(v <= A(0) || v >= A(6));
  if constexpr (act == Activation::kLeakyRelu) return v > A(0);
  return true;
}

// Half of what is left of a number that is stored as T: of the least above 0, and of the last below 6.  What is
// as far off as that goes to the even one: to 0, and to 6.
template <typename T>
struct Rounding {
  static constexpr Sum<T> kZero = 0, kSix = 6;
};
template <>
struct Rounding<__half> {
  static constexpr float kZero = 0x1p-25f, kSix = 6 - 0x1p-9f;
};
template <>
struct Rounding<__nv_bfloat16> {
  static constexpr float kZero = 0x1p-134f, kSix = 6 - 0x1p-6f;
};

// The same of what is not stored yet: as a comparison, without the way to T and back.
template <Activation act, typename T>
__device__ inline bool passes_rounded(Sum<T> v) {
  if constexpr (act == Activation::kRelu) return !(v <= Rounding<T>::kZero);
  if constexpr (act == Activation::kRelu6) return !(v <= Rounding<T>::kZero || v >= Rounding<T>::kSix);
  if constexpr (act == Activation::kLeakyRelu) return v > Rounding<T>::kZero;
  return true;
}

// What is left of it elsewhere.
template <Activation act, typename A>
__device__ inline A held_back(A dy, A alpha) {
  return act == Activation::kLeakyRelu ? alpha * dy : A(0);
}

// The same of a pack, a bit each.
template <Activation act, typename T, int V>
__device__ inline uint8_t passing(const Pack<T, V>& pack) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) bits |= unsigned{passes<act>(wide(pack.value[i]))} << i;
  return static_cast<uint8_t>(bits);
}

// The gradient before the activation, where `v` came out of the normalization.
template <Activation act, typename T>
__device__ inline Sum<T> before(Sum<T> dy, Sum<T> v, Sum<T> alpha) {
  using A = Sum<T>;
  if constexpr (act == Activation::kSilu) {
    const A s = sigmoid<T>(v);
    return dy * (s * (A(1) + v * (A(1) - s)));
  } else if constexpr (act == Activation::kGelu) {
    return dy * (below(v) + v * exponential<T>(A(-0.5) * v * v) * A(0.39894228040143267794));
  } else if constexpr (act == Activation::kGeluTanh) {
    const GeluTanh<T> g(v);
    return dy * (g.share + A(2) * v * g.share * (A(1) - g.share) * g.rise);
  } else if constexpr (act == Activation::kHardswish) {
    return v <= A(-3) ? A(0) : v >= A(3) ? dy : dy * (v * A(1.0 / 3) + A(0.5));
  } else if constexpr (act == Activation::kElu) {
    return v <= A(0) ? dy * alpha * exponential<T>(v) : dy;
  } else {
    return passes_rounded<act, T>(v) ? dy : held_back<act>(dy, alpha);
  }
}

// ---- sums over the blocks -----------------------------------------------------------------------------

constexpr int kFew = 8, kParts = 64;  // a block of what finishes: channels, and threads of each

// The channel of such a thread, and its image.
struct FewPlace {
  int64_t image, channel, from;  // from: a channel that is there
  bool there, writes;
  template <typename S>
  __device__ explicit FewPlace(const S& shape) {
    const int64_t each = (shape.real() + kFew - 1) / kFew;
    image = S::kGrouped ? blockIdx.x / each : 0;
    channel = (S::kGrouped ? blockIdx.x % each : blockIdx.x) * kFew + threadIdx.x % kFew;
    there = channel < shape.real();
    writes = there && threadIdx.x < kFew;
    from = there ? channel : 0;
  }
};

// Such kernels take as long as a few ways from memory, one behind the other, so what a thread reads is under
// way together: of so many parts at a time.  Without the 1 of their launch bounds ptxas would have several
// blocks of 512 threads on a multiprocessor, for which a thread gets 32 registers and reads bit by bit.
constexpr int kPartsAtOnce = 8;

// Calls `some(parts)` with what `read(i)` gives of each of a thread's parts, so many at a time; of those that
// are not there with `none`, which are read too: no load waits for a question.
template <typename Part, typename Read, typename Some>
__device__ inline void each_part(int count, const Part& none, Read read, Some some) {
  for (int first = threadIdx.x / kFew; first < count; first += kPartsAtOnce * kParts) {
    Part parts[kPartsAtOnce];
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      const int i = first + k * kParts;
      parts[k] = read(i < count ? i : count - 1);
      if (i >= count) parts[k] = none;
    }
    some(parts);
  }
}

// Of each of some values the sum over all threads of a channel; the order is that of the sizes.
template <int N, typename A>
__device__ inline void over_threads(A (&sums)[N]) {
  constexpr int kWarps = kFew * kParts / 32;
  __shared__ A of_warps[N][kWarps][kFew];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    for (int step = kFew; step < 32; step *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
    if (threadIdx.x % 32 < kFew) of_warps[i][threadIdx.x / 32][threadIdx.x % 32] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sums[i] = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sums[i] += of_warps[i][warp][threadIdx.x % kFew];
  }
  __syncthreads();
}

// Some values of a part.
template <int N, typename A>
struct Terms {
  A of[N];
};

// The sums over `i` of what `read(i)` gives, for the channel of a thread.
template <int N, typename A, typename Read>
__device__ inline Terms<N, A> over_parts_of(int count, Read read) {
  Terms<N, A> sums = {};
  each_part(count, Terms<N, A>{}, read, [&](const Terms<N, A> (&parts)[kPartsAtOnce]) {
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) sums.of[i] += parts[k].of[i];
    }
  });
  over_threads(sums.of);
  return sums;
}

constexpr int kGroupWarps = 8;  // of a block: each has a group

// A group of a warp, and the places of its channels.
struct GroupPlace {
  int64_t image, first, group;  // first: its first channel; group: of all images'
  bool there;
  template <typename S>
  __device__ explicit GroupPlace(const S& shape) {
    const int64_t groups = shape.channels / shape.group;
    group = int64_t{blockIdx.x} * kGroupWarps + threadIdx.x / 32;
    there = group < groups * shape.images;
    image = group / groups;
    first = group % groups * shape.group;
  }
  // The sum of a term of each channel; every thread of the warp gets it.
  template <typename A, typename S, typename Term>
  __device__ A sum(const S& shape, Term term) const {
    A sum = 0;
    for (int64_t c = threadIdx.x % 32; there && c < shape.group; c += 32) sum += term(first + c);
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
};

// ---- launching ----------------------------------------------------------------------------------------

// A call with so many rows side by side.
inline RelayWgradNormCall side_by_side(RelayWgradNormCall call, int64_t fold) {
  call.fold = fold;
  if (fold == 1) return call;
  call.rows /= fold;
  call.channels *= fold;
  call.groups = call.channels;
  return call;
}

// The same where a call's sizes let them be; where nothing goes from forward to backward in their order,
// also its workspace.
template <typename T>
inline RelayWgradNormCall folded(const RelayWgradNormCall& call) {
  const int64_t fold = norm_fold(call.images, call.rows, call.channels, call.groups, kVector<T>);
  const bool tells = call.mask != nullptr || call.new_mask != nullptr;
  const int64_t needed = kNormSums * int64_t{sizeof(Sum<T>)} * call.channels * fold * call.images;
  return side_by_side(call, tells || call.workspace_bytes >= needed ? fold : 1);
}

template <int V, typename S = Plain>
inline S shape_of(const RelayWgradNormCall& call, int sum_bytes, int64_t sums = kNormSums) {
  const int64_t columns = (call.channels + V - 1) / V;
  const int width = norm_width(columns);
  S shape{call.images, call.rows, call.channels, call.channels / call.groups, 0, width, 0, 0, columns};
  shape.fold = call.fold > 1 ? call.fold : 1;
  shape.by_fold = Quotient(shape.fold);
  shape.own = call.channels / shape.fold;
  shape.chunks = (call.rows + shape.chunk_rows() - 1) / shape.chunk_rows();
  shape.tiles = static_cast<int>((columns + width - 1) / width);
  const int64_t room = call.workspace_bytes / (sums * sum_bytes * call.channels * call.images);
  const int64_t most = kNormBlocks * call.multiprocessors / (shape.tiles * call.images);
  shape.set_blocks(most < room ? most : room);
  return shape;
}

// For a pass without sums.
template <typename S>
inline S writing(S shape, const RelayWgradNormCall& call) {
  shape.set_blocks(int64_t{kWriters} * call.multiprocessors / (shape.tiles * shape.images));
  return shape;
}

template <typename S>
inline dim3 grid_of(const S& shape) {
  return dim3(static_cast<unsigned>(shape.tiles * shape.images), static_cast<unsigned>(shape.blocks));
}

// Of `images` images' channels.
template <typename S>
inline dim3 few_grid(const S& shape, int64_t images = 1) {
  return dim3(static_cast<unsigned>((shape.real() + kFew - 1) / kFew * images));
}

// A warp for each group of an image.
template <typename S>
inline dim3 group_grid(const S& shape) {
  const int64_t groups = shape.images * (shape.channels / shape.group);
  return dim3(static_cast<unsigned>((groups + kGroupWarps - 1) / kGroupWarps));
}

}  // namespace
