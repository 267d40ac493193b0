// ---- depthwise, channels last: fprop and dgrad -------------------------------------------------------------

namespace {

// fprop, and dgrad of stride 1, which is fprop with turned filters.  Row u of the input reaches the
// results p with r = u - p * SR; in step t come rows t * SR + j, and A results are under way:
// r = a * SR + j for the one that began a steps ago.
template <typename T, typename Out, typename After, int V, int C, int R, int S, int SR, int SS, int TQ,
          int B, int D, bool kFlip>
__global__ void __launch_bounds__(B) rows_gather(RelayWgradDirectCall z, Cover cover, int chunk) {
  constexpr int A = (R + SR - 1) / SR, N = (TQ - 1) * SS + S;
  static_assert(N <= 32);
  __shared__ __align__(16) T taps[R * S * std::min(kMostPacks, B) * V];
  __shared__ __align__(16) Raw<T, V> ring[Feed<D, SR, N, T, V, B, C>::kShared];
  const int side = threadIdx.x % cover.packs, lane = threadIdx.x / cover.packs;
  const int group = blockIdx.x % cover.groups, first = group * cover.packs * V;
  const int channel = first + side * V, index = blockIdx.x / cover.groups * cover.lanes + lane;
  const bool active = channel < C && index < cover.items;
  begin();
  stage(taps, static_cast<const T*>(z.second) + int64_t{first} * (R * S),
        min(cover.packs * V, C - first) * (R * S), cover.packs * cover.lanes);
  grouped();
  const Item item(index, cover);
  const int q0 = item.strip * TQ, w0 = q0 * SS - z.left, p0 = item.chunk * chunk;
  const int rows = min(chunk, z.p - p0);
  const int64_t line = int64_t{z.w} * C, below = int64_t{z.q} * C;
  Feed<D, SR, N, T, V, B, C> feed({static_cast<const T*>(z.first) + int64_t{item.image} * z.h * line +
                                       int64_t{w0} * C + channel,
                                   line, p0 * SR - z.top, active ? (rows - 1) * SR + R : 0, z.h,
                                   existing<N>(w0, z.w)},
                                  ring);
  const auto ask = [&](int t) { feed.ask_step(t); };
  ask_first<D>(ask);
  arrived<(D > 1 ? D - 1 : 0)>();
  __syncthreads();
  if (!active) return;
  float w[R * S][V], bias[V] = {}, acc[A][TQ][V] = {};
  taken<R * S, V, kFlip>(w, taps + side * V * (R * S));
  if constexpr (After::kPerChannel) {
    Raw<Out, V> raw;
    raw.read(static_cast<const Out*>(z.source) + channel);
    raw.widened(bias);
  }
  const int64_t at = (int64_t{item.image} * z.p + p0) * below + int64_t{q0} * C + channel;
  Out* out = static_cast<Out*>(z.result) + at;
  const Out* source = After::kWhole ? static_cast<const Out*>(z.source) + at : nullptr;
  const unsigned there = existing<TQ>(q0, z.q);
#pragma unroll 1
  for (int t = 0; t < rows + A - 1; ++t) {
    begin_step<D>(ask, t);
#pragma unroll
    for (int j = 0; j < SR; ++j) {
      feed.begin_row(t, j);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float x[V];
        feed.take(x, i);
#pragma unroll
        for (int a = 0; a < A; ++a) {
          if (a * SR + j >= R) continue;
#pragma unroll
          for (int q = 0; q < TQ; ++q) {
            const int s = i - q * SS;
            if (s < 0 || s >= S) continue;
#pragma unroll
            for (int v = 0; v < V; ++v) {
              acc[a][q][v] = fmaf(x[v], w[(a * SR + j) * S + s][v], acc[a][q][v]);
            }
          }
        }
      }
    }
    if (t >= A - 1) {
#pragma unroll
      for (int q = 0; q < TQ; ++q) {
        put<After>(out + q * C, source + (After::kWhole ? q * C : 0), there >> q & 1, acc[A - 1][q], bias);
      }
      out += below;
      if constexpr (After::kWhole) source += below;
    }
#pragma unroll
    for (int a = A - 1; a >= 0; --a) {
#pragma unroll
      for (int q = 0; q < TQ; ++q) {
#pragma unroll
        for (int v = 0; v < V; ++v) acc[a][q][v] = a > 0 ? acc[a > 0 ? a - 1 : 0][q][v] : 0.f;
      }
    }
  }
}

constexpr int floor_of(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// dgrad by phases.  Pixels come in blocks of SR rows and SS columns: h = b * SR + j.  Let the padding
// be pad = whole * SR + off.  Gradient row p reaches h with r = h + pad - p * SR, that is
// r = d * SR + j + off with d = b + whole - p, from -before to after.
template <int R, int SR, int OFF>
struct Phases {
  static constexpr int kBefore = (SR - 1 + OFF) / SR, kAfter = floor_of(R - 1 - OFF, SR);
  static constexpr int kRows = kAfter + kBefore + 1;  // gradient rows that reach a block
};

template <typename T, typename Out, typename After, int V, int C, int R, int S, int SR, int SS, int OR,
          int OS, int TB, int B, int D>
__global__ void __launch_bounds__(B) rows_scatter(RelayWgradDirectCall z, Cover cover, int chunk) {
  using Down = Phases<R, SR, OR>;
  using Across = Phases<S, SS, OS>;
  constexpr int A = Down::kRows, N = TB + Across::kRows - 1;
  static_assert(N <= 32 && TB * SS <= 32);
  __shared__ __align__(16) T taps[R * S * std::min(kMostPacks, B) * V];
  __shared__ __align__(16) Raw<T, V> ring[Feed<D, 1, N, T, V, B, C>::kShared];
  const int side = threadIdx.x % cover.packs, lane = threadIdx.x / cover.packs;
  const int group = blockIdx.x % cover.groups, first = group * cover.packs * V;
  const int channel = first + side * V, index = blockIdx.x / cover.groups * cover.lanes + lane;
  const bool active = channel < C && index < cover.items;
  begin();
  stage(taps, static_cast<const T*>(z.second) + int64_t{first} * (R * S),
        min(cover.packs * V, C - first) * (R * S), cover.packs * cover.lanes);
  grouped();
  const Item item(index, cover);
  const int b0 = item.chunk * chunk, rows = min(chunk, (z.h + SR - 1) / SR - b0);
  const int p0 = b0 + z.top / SR - Down::kAfter, c0 = item.strip * TB;
  const int q0 = c0 + z.left / SS - Across::kAfter;
  const int steps = rows + A - 1;
  const int64_t line = int64_t{z.q} * C, below = int64_t{z.w} * C;
  Feed<D, 1, N, T, V, B, C> feed({static_cast<const T*>(z.first) + int64_t{item.image} * z.p * line +
                                      int64_t{q0} * C + channel,
                                  line, p0, active ? steps : 0, z.p, existing<N>(q0, z.q)},
                                 ring);
  const auto ask = [&](int t) { feed.ask_step(t); };
  ask_first<D>(ask);
  arrived<(D > 1 ? D - 1 : 0)>();
  __syncthreads();
  if (!active) return;
  float w[R * S][V], bias[V] = {}, acc[A][SR][TB * SS][V] = {};
  taken<R * S, V, false>(w, taps + side * V * (R * S));
  if constexpr (After::kPerChannel) {
    Raw<Out, V> raw;
    raw.read(static_cast<const Out*>(z.source) + channel);
    raw.widened(bias);
  }
  int h = b0 * SR;
  const int64_t at = (int64_t{item.image} * z.h + h) * below + int64_t{c0} * SS * C + channel;
  Out* out = static_cast<Out*>(z.result) + at;
  const Out* source = After::kWhole ? static_cast<const Out*>(z.source) + at : nullptr;
  const unsigned columns = existing<TB * SS>(c0 * SS, z.w);
#pragma unroll 1
  for (int t = 0; t < steps; ++t) {
    begin_step<D>(ask, t);
    feed.begin_row(t, 0);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float y[V];
      feed.take(y, i);
#pragma unroll
      for (int a = 0; a < A; ++a) {
#pragma unroll
        for (int j = 0; j < SR; ++j) {
          const int r = (a - Down::kBefore) * SR + j + OR;
          if (r < 0 || r >= R) continue;
#pragma unroll
          for (int c = 0; c < TB * SS; ++c) {
            const int s = (c / SS + Across::kAfter - i) * SS + c % SS + OS;
            if (s < 0 || s >= S) continue;
#pragma unroll
            for (int v = 0; v < V; ++v) {
              acc[a][j][c][v] = fmaf(y[v], w[r * S + s][v], acc[a][j][c][v]);
            }
          }
        }
      }
    }
    if (t >= A - 1) {
#pragma unroll
      for (int j = 0; j < SR; ++j, ++h) {
        const unsigned there = h < z.h ? columns : 0u;
#pragma unroll
        for (int c = 0; c < TB * SS; ++c) {
          put<After>(out + c * C, source + (After::kWhole ? c * C : 0), there >> c & 1, acc[0][j][c], bias);
        }
        out += below;
        if constexpr (After::kWhole) source += below;
      }
    }
#pragma unroll
    for (int a = 0; a < A; ++a) {
#pragma unroll
      for (int j = 0; j < SR; ++j) {
#pragma unroll
        for (int c = 0; c < TB * SS; ++c) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            acc[a][j][c][v] = a + 1 < A ? acc[a + 1 < A ? a + 1 : 0][j][c][v] : 0.f;
          }
        }
      }
    }
  }
}

inline dim3 grid_of(const Cover& cover) {
  return dim3(static_cast<unsigned>(divided(cover.items, cover.lanes)) * cover.groups);
}

template <typename T, typename Out, typename After, int V, int C, int R, int S, int SR, int SS, int TQ,
          int B, int F, int D>
int depthwise_rows_fprop(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (no_workspace(z)) return 0;
  if (z.c != C) return -static_cast<int>(cudaErrorInvalidValue);
  const int strips = divided(z.q, TQ), ramp = divided(R, SR) - 1;
  const int chunk = chunk_of(z.n, z.p, strips, C / V, ramp, F, B);
  if (too_many(z.n, strips, divided(z.p, chunk))) return -static_cast<int>(cudaErrorInvalidValue);
  const Cover cover = cover_of(z.n, C, strips, divided(z.p, chunk), V, B, sizeof(T));
  return finished(launch(rows_gather<T, Out, After, V, C, R, S, SR, SS, TQ, B, D, false>, grid_of(cover),
                         cover.packs * cover.lanes, stream, z, cover, chunk));
}

template <typename T, typename Out, typename After, int V, int C, int R, int S, int SR, int SS, int OR,
          int OS, int TB, int B, int F, int D>
int depthwise_rows_dgrad(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (no_workspace(z)) return 0;
  if (z.c != C) return -static_cast<int>(cudaErrorInvalidValue);
  const int strips = divided(z.w, TB * SS), rows = divided(z.h, SR), ramp = divided(R, SR) - 1;
  const int chunk = chunk_of(z.n, rows, strips, C / V, ramp, F, B);
  if (too_many(z.n, strips, divided(rows, chunk))) return -static_cast<int>(cudaErrorInvalidValue);
  const Cover cover = cover_of(z.n, C, strips, divided(rows, chunk), V, B, sizeof(T));
  if constexpr (SR == 1 && SS == 1) {
    RelayWgradDirectCall y = z;
    y.h = z.p, y.w = z.q, y.p = z.h, y.q = z.w, y.top = R - 1 - z.top, y.left = S - 1 - z.left;
    return finished(launch(rows_gather<T, Out, After, V, C, R, S, 1, 1, TB, B, D, true>, grid_of(cover),
                           cover.packs * cover.lanes, stream, y, cover, chunk));
  } else {
    return finished(launch(rows_scatter<T, Out, After, V, C, R, S, SR, SS, OR, OS, TB, B, D>, grid_of(cover),
                           cover.packs * cover.lanes, stream, z, cover, chunk));
  }
}

}  // namespace
