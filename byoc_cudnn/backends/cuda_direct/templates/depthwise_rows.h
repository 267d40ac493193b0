// ---- depthwise, channels last: fprop and dgrad -------------------------------------------------------------

namespace {

// fprop, and dgrad of stride 1, which is fprop with turned filters.  Row u of the input reaches the
// results p with r = u - p * SR; in step t come rows t * SR + j, and A results are under way:
// r = a * SR + j for the one that began a steps ago.
template <typename T, typename Out, typename After, int V, int R, int S, int SR, int SS, int TQ, int B,
          int D, bool kFlip>
__global__ void __launch_bounds__(B) rows_gather(RelayWgradDirectCall z, Cover cover, int chunk) {
  constexpr int A = (R + SR - 1) / SR, N = (TQ - 1) * SS + S;
  static_assert(N <= 32);
  __shared__ __align__(16) T taps[R * S * std::min(kMostPacks, B) * V];
  __shared__ Raw<T, V> ring[Feed<D, SR, N, T, V, B>::kShared];
  const int side = threadIdx.x % cover.packs, lane = threadIdx.x / cover.packs;
  const int group = blockIdx.x % cover.groups, first = group * cover.packs * V;
  const int channel = first + side * V, index = blockIdx.x / cover.groups * cover.lanes + lane;
  begin();
  stage<R * S, kFlip>(taps, static_cast<const T*>(z.second), first, cover.packs * V, z.c,
                      cover.packs * cover.lanes);
  __syncthreads();
  if (channel >= z.c || index >= cover.items) return;
  const Item item(index, cover);
  const int q0 = item.strip * TQ, w0 = q0 * SS - z.left, p0 = item.chunk * chunk;
  const int rows = min(chunk, z.p - p0), needed = (rows - 1) * SR + R, h0 = p0 * SR - z.top;
  const auto* const data = static_cast<const T*>(z.first);
  const int64_t line = int64_t{z.w} * z.c;
  const RowsOf<T> lines{data, data + item.image * z.h * line + int64_t{w0} * z.c + channel, line, h0,
                        needed, z.h, existing<N>(w0, z.w)};
  Feed<D, SR, N, T, V, B> feed;
  feed.start(lines, z.c, ring);
  const auto ask = [&](int t) { feed.ask_step(lines, t, z.c); };
  ask_first<D>(ask);
  float w[R * S][V], bias[V] = {}, acc[A][TQ][V] = {};
  taken(w, taps, cover.packs * V, side * V);
  if constexpr (After::kPerChannel) {
    Raw<Out, V> raw;
    raw.read(static_cast<const Out*>(z.source) + channel);
    raw.widened(bias);
  }
#pragma unroll 1
  for (int t = 0; t < rows + A - 1; ++t) {
    begin_step<D>(ask, t);
#pragma unroll
    for (int j = 0; j < SR; ++j) {
      Raw<T, V> row[N];
      feed.take(row, lines, t * SR + j, z.c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float x[V];
        row[i].widened(x);
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
      const int64_t at =
          ((int64_t{item.image} * z.p + p0 + t - (A - 1)) * z.q + q0) * z.c + channel;
#pragma unroll
      for (int q = 0; q < TQ; ++q) {
        if (q0 + q < z.q) put<After, Out>(z, at + q * int64_t{z.c}, acc[A - 1][q], bias);
      }
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

template <typename T, typename Out, typename After, int V, int R, int S, int SR, int SS, int OR, int OS,
          int TB, int B, int D>
__global__ void __launch_bounds__(B) rows_scatter(RelayWgradDirectCall z, Cover cover, int chunk) {
  using Down = Phases<R, SR, OR>;
  using Across = Phases<S, SS, OS>;
  constexpr int A = Down::kRows, N = TB + Across::kRows - 1;
  static_assert(N <= 32);
  __shared__ __align__(16) T taps[R * S * std::min(kMostPacks, B) * V];
  __shared__ Raw<T, V> ring[Feed<D, 1, N, T, V, B>::kShared];
  const int side = threadIdx.x % cover.packs, lane = threadIdx.x / cover.packs;
  const int group = blockIdx.x % cover.groups, first = group * cover.packs * V;
  const int channel = first + side * V, index = blockIdx.x / cover.groups * cover.lanes + lane;
  begin();
  stage<R * S, false>(taps, static_cast<const T*>(z.second), first, cover.packs * V, z.c,
                      cover.packs * cover.lanes);
  __syncthreads();
  if (channel >= z.c || index >= cover.items) return;
  const Item item(index, cover);
  const int b0 = item.chunk * chunk, rows = min(chunk, (z.h + SR - 1) / SR - b0);
  const int p0 = b0 + z.top / SR - Down::kAfter, c0 = item.strip * TB;
  const int q0 = c0 + z.left / SS - Across::kAfter;
  const int steps = rows + A - 1;
  const auto* const grad = static_cast<const T*>(z.first);
  const int64_t line = int64_t{z.q} * z.c;
  const RowsOf<T> lines{grad, grad + item.image * z.p * line + int64_t{q0} * z.c + channel, line, p0,
                        steps, z.p, existing<N>(q0, z.q)};
  Feed<D, 1, N, T, V, B> feed;
  feed.start(lines, z.c, ring);
  const auto ask = [&](int t) { feed.ask_step(lines, t, z.c); };
  ask_first<D>(ask);
  float w[R * S][V], bias[V] = {}, acc[A][SR][TB * SS][V] = {};
  taken(w, taps, cover.packs * V, side * V);
  if constexpr (After::kPerChannel) {
    Raw<Out, V> raw;
    raw.read(static_cast<const Out*>(z.source) + channel);
    raw.widened(bias);
  }
#pragma unroll 1
  for (int t = 0; t < steps; ++t) {
    begin_step<D>(ask, t);
    Raw<T, V> row[N];
    feed.take(row, lines, t, z.c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float y[V];
      row[i].widened(y);
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
      for (int j = 0; j < SR; ++j) {
        const int h = (b0 + t - (A - 1)) * SR + j;
        if (h >= z.h) continue;
        const int64_t at = ((int64_t{item.image} * z.h + h) * z.w + c0 * SS) * z.c + channel;
#pragma unroll
        for (int c = 0; c < TB * SS; ++c) {
          if (c0 * SS + c < z.w) put<After, Out>(z, at + c * int64_t{z.c}, acc[0][j][c], bias);
        }
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

template <typename T, typename Out, typename After, int V, int R, int S, int SR, int SS, int TQ, int B,
          int F, int D>
int depthwise_rows_fprop(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (no_workspace(z)) return 0;
  const int strips = divided(z.q, TQ), ramp = divided(R, SR) - 1;
  const int chunk = chunk_of(z.n, z.p, strips, z.c / V, ramp, kMultiprocessors * F * B);
  if (too_many(z.n, strips, divided(z.p, chunk))) return -static_cast<int>(cudaErrorInvalidValue);
  const Cover cover = cover_of(z.n, z.c, strips, divided(z.p, chunk), V, B);
  return finished(launch(rows_gather<T, Out, After, V, R, S, SR, SS, TQ, B, D, false>, grid_of(cover),
                         cover.packs * cover.lanes, stream, z, cover, chunk));
}

template <typename T, typename Out, typename After, int V, int R, int S, int SR, int SS, int OR, int OS,
          int TB, int B, int F, int D>
int depthwise_rows_dgrad(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (no_workspace(z)) return 0;
  const int strips = divided(z.w, TB * SS), rows = divided(z.h, SR), ramp = divided(R, SR) - 1;
  const int chunk = chunk_of(z.n, rows, strips, z.c / V, ramp, kMultiprocessors * F * B);
  if (too_many(z.n, strips, divided(rows, chunk))) return -static_cast<int>(cudaErrorInvalidValue);
  const Cover cover = cover_of(z.n, z.c, strips, divided(rows, chunk), V, B);
  if constexpr (SR == 1 && SS == 1) {
    RelayWgradDirectCall y = z;
    y.h = z.p, y.w = z.q, y.p = z.h, y.q = z.w, y.top = R - 1 - z.top, y.left = S - 1 - z.left;
    return finished(launch(rows_gather<T, Out, After, V, R, S, 1, 1, TB, B, D, true>, grid_of(cover),
                           cover.packs * cover.lanes, stream, y, cover, chunk));
  } else {
    return finished(launch(rows_scatter<T, Out, After, V, R, S, SR, SS, OR, OS, TB, B, D>, grid_of(cover),
                           cover.packs * cover.lanes, stream, z, cover, chunk));
  }
}

}  // namespace
