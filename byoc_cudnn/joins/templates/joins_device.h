// ---- channels of several tensors, side by side --------------------------------------------------------
//
// A row's channels are shared out to threads, each with as many neighbours of one piece as can be moved
// at once, 16 bytes or a half, a quarter, an eighth of them: as the piece's places allow.  A thread has
// the same channels of several rows, so that which piece they are of is looked up once, and all loads
// of a term are under way before the first is used; where rows are few, those of several terms.

namespace {

constexpr int kRows = 8, kFew = 1;  // of a thread; where the tensors are small
constexpr int kTerms = 4;           // whose loads are under way together there
constexpr int kBlocks = 2;          // of a multiprocessor, below which they are

template <int bytes>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<2> {
  using Type = unsigned short;
};

template <typename T, int V>
__device__ inline Pack<T, V> read(const T* at) {
  using Bits = typename Word<V * sizeof(T)>::Type;
  const Bits bits = __ldg(reinterpret_cast<const Bits*>(at));
  Pack<T, V> pack;
  memcpy(&pack, &bits, sizeof(bits));
  return pack;
}

template <typename T, int V>
__device__ inline void write(T* at, const Pack<T, V>& pack) {
  using Bits = typename Word<V * sizeof(T)>::Type;
  Bits bits;
  memcpy(&bits, &pack, sizeof(bits));
  *reinterpret_cast<Bits*>(at) = bits;
}

// The sum is rounded, as it is where it is stored between.
template <typename T, int V>
__device__ inline void add(Pack<T, V>& to, const Pack<T, V>& more) {
#pragma unroll
  for (int i = 0; i < V; ++i) to.value[i] = narrow<T>(wide(to.value[i]) + wide(more.value[i]));
}

// Of rows `row`, `row + height`, and so on, U of them; with `whole` all are there.
template <typename T, int V, int U, bool whole>
__device__ inline void some(const RelayWgradJoinsCall& z, const RelayWgradJoinsPiece& piece,
                            int64_t channel, int64_t row) {
  constexpr int G = U == kFew ? kTerms : 1;
  Pack<T, V> sums[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
#pragma unroll
    for (int i = 0; i < V; ++i) sums[u].value[i] = narrow<T>(Sum<T>(0));
  }
  auto there = [&](int u) { return whole || row + int64_t{u} * z.height < z.rows; };
#pragma unroll 1
  for (int t = 0; t < piece.terms; t += G) {
    Pack<T, V> more[G][U];
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (t + g >= piece.terms) continue;
      const RelayWgradJoinsTerm& term = z.term[piece.first + t + g];
      const T* const from = static_cast<const T*>(term.at) + row * term.stride + channel;
      const int64_t apart = z.height * term.stride;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        if (there(u)) more[g][u] = read<T, V>(from + u * apart);
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (t + g >= piece.terms) continue;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        if (g == 0 && t == 0) {
          sums[u] = more[g][u];
        } else {
          add(sums[u], more[g][u]);
        }
      }
    }
  }
  T* const to = static_cast<T*>(piece.to) + row * piece.stride + channel;
  const int64_t apart = z.height * piece.stride;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (there(u)) write(to + u * apart, sums[u]);
  }
}

// Of a thread's channels `each` rows, U at a time.
template <typename T, int V, int U>
__device__ inline void rows_of(const RelayWgradJoinsCall& z, const RelayWgradJoinsPiece& piece,
                               int64_t channel, int64_t row, int each) {
#pragma unroll 1
  for (int done = 0; done < each; done += U, row += int64_t{U} * z.height) {
    if (row + int64_t{U - 1} * z.height < z.rows) {
      some<T, V, U, true>(z, piece, channel, row);
    } else if (row < z.rows) {
      some<T, V, U, false>(z, piece, channel, row);
    }
  }
}

template <typename T, int V>
__device__ inline void column(const RelayWgradJoinsCall& z, const RelayWgradJoinsPiece& piece,
                              int64_t channel, int64_t row) {
  if (z.each == kFew) {
    rows_of<T, V, kFew>(z, piece, channel, row, kFew);
  } else {
    rows_of<T, V, V * sizeof(T) == 16 ? kRows / 2 : kRows>(z, piece, channel, row, kRows);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 3)
    join(const __grid_constant__ RelayWgradJoinsCall z) {
  begin();
  const int lane = static_cast<int>(threadIdx.x) % z.tile, of_row = blockIdx.y * z.tile + lane;
  const int height = static_cast<int>(threadIdx.x) / z.tile;
  if (height >= z.height || of_row >= z.piece[z.pieces - 1].end) return;
  int low = 0;
  for (int high = z.pieces - 1; low < high;) {
    const int middle = (low + high) / 2;
    if (of_row < z.piece[middle].end) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const RelayWgradJoinsPiece& piece = z.piece[low];
  const int64_t row = int64_t{blockIdx.x} * z.height * z.each + height;
  const int64_t channel = int64_t{of_row - (low == 0 ? 0 : z.piece[low - 1].end)} * piece.vector;
  switch (piece.vector * static_cast<int>(sizeof(T))) {
    case 16: column<T, 16 / sizeof(T)>(z, piece, channel, row); break;
    case 8: column<T, 8 / sizeof(T)>(z, piece, channel, row); break;
    case 4:
      if constexpr (sizeof(T) <= 4) column<T, 4 / sizeof(T)>(z, piece, channel, row);
      break;
    default:
      if constexpr (sizeof(T) <= 2) column<T, 1>(z, piece, channel, row);
  }
}

// Whether accesses of so many bytes lie at multiples of themselves, in every row.
template <typename T>
inline bool fits(const void* at, int64_t stride, size_t bytes) {
  return reinterpret_cast<uintptr_t>(at) % bytes == 0 && stride * sizeof(T) % bytes == 0;
}

template <typename T>
int joined(const RelayWgradJoinsCall& call, cudaStream_t stream) {
  RelayWgradJoinsCall z = call;
  int end = 0;
  for (int p = 0; p < z.pieces; ++p) {
    RelayWgradJoinsPiece& piece = z.piece[p];
    size_t bytes = 16;
    auto together = [&] {
      bool all = piece.width * sizeof(T) % bytes == 0 && fits<T>(piece.to, piece.stride, bytes);
      for (int t = 0; t < piece.terms; ++t) {
        const RelayWgradJoinsTerm& term = z.term[piece.first + t];
        all = all && fits<T>(term.at, term.stride, bytes);
      }
      return all;
    };
    while (bytes > sizeof(T) && !together()) bytes /= 2;
    piece.vector = static_cast<int>(bytes / sizeof(T));
    piece.end = end += piece.width / piece.vector;
  }
  const int tiles = (end + kThreads - 1) / kThreads;
  z.tile = (end + tiles - 1) / tiles;
  z.height = kThreads / z.tile;
  auto blocks_of = [&](int each) {
    const int64_t rows = int64_t{z.height} * each;
    return (z.rows + rows - 1) / rows;
  };
  z.each = blocks_of(kRows) * tiles < kBlocks * z.multiprocessors ? kFew : kRows;
  const int64_t blocks = blocks_of(z.each);
  if (tiles > 65535 || blocks > 0x7fffffff) return finished(cudaErrorInvalidValue);
  const int threads = (z.tile * z.height + 31) / 32 * 32;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  return finished(launch(join<T>, grid, threads, stream, z));
}

}  // namespace
