// ---- depthwise, channels last: wgrad -----------------------------------------------------------------------

namespace {

// A thread has all taps of V channels, and of each of its items the gradients of A rows: in step t
// come rows t * SR + j of the data, and r = a * SR + j with the gradients of a steps ago.  The sums of a
// block's threads are added in a fixed order and are a slab of the workspace: [slab][tap][channel].
template <typename T, int V, int C, int R, int S, int SR, int SS, int TQ, int B, int F, int D>
__global__ void __launch_bounds__(B, F)
    rows_sums(RelayWgradDirectCall z, Cover cover, int chunk, int slabs) {
  constexpr int A = (R + SR - 1) / SR, N = (TQ - 1) * SS + S;
  static_assert(N <= 32);
  __shared__ __align__(16) float shared[S * B * V];
  __shared__ __align__(16) Raw<T, V> ring[Feed<D, SR, N, T, V, B, C>::kShared];
  __shared__ __align__(16) Raw<T, V> below_ring[Feed<D, 1, TQ, T, V, B, C>::kShared];
  const int side = threadIdx.x % cover.packs, lane = threadIdx.x / cover.packs;
  const int group = blockIdx.x % cover.groups, first = group * cover.packs * V;
  const int slab = blockIdx.x / cover.groups, channel = first + side * V;
  const int64_t line = int64_t{z.w} * C, below = int64_t{z.q} * C;
  float sums[R * S][V] = {};
  begin();
  for (int index = slab * cover.lanes + lane; index < cover.items && channel < C;
       index += slabs * cover.lanes) {
    const Item item(index, cover);
    const int q0 = item.strip * TQ, w0 = q0 * SS - z.left, p0 = item.chunk * chunk;
    const int rows = min(chunk, z.p - p0);
    const auto *const data = static_cast<const T*>(z.second), *grad = static_cast<const T*>(z.first);
    const int64_t image = item.image;
    Feed<D, 1, TQ, T, V, B, C> coming({grad + image * z.p * below + int64_t{q0} * C + channel, below, p0,
                                       rows, z.p, existing<TQ>(q0, z.q)},
                                      below_ring);
    Feed<D, SR, N, T, V, B, C> feed({data + image * z.h * line + int64_t{w0} * C + channel, line,
                                     p0 * SR - z.top, (rows - 1) * SR + R, z.h, existing<N>(w0, z.w)},
                                    ring);
    const auto ask = [&](int t) {
      coming.ask_step(t);
      feed.ask_step(t);
    };
    // Copies are in no order: the last item's, of rows that are not there, must not come after these.
    if constexpr (D > 0) arrived<0>();
    ask_first<D>(ask);
    float g[A][TQ][V] = {};
#pragma unroll 1
    for (int t = 0; t < rows + A - 1; ++t) {
      begin_step<D>(ask, t);
#pragma unroll
      for (int a = A - 1; a > 0; --a) {
#pragma unroll
        for (int q = 0; q < TQ; ++q) {
#pragma unroll
          for (int v = 0; v < V; ++v) g[a][q][v] = g[a - 1][q][v];
        }
      }
      coming.begin_row(t, 0);
#pragma unroll
      for (int q = 0; q < TQ; ++q) coming.take(g[0][q], q);
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
                float& sum = sums[(a * SR + j) * S + s][v];
                sum = fmaf(x[v], g[a][q][v], sum);
              }
            }
          }
        }
      }
    }
  }
  const int count = cover.packs * V, width = cover.packs * cover.lanes;
  auto* const parts = static_cast<float*>(z.workspace) + int64_t{slab} * (R * S * C) + first;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    __syncthreads();
#pragma unroll
    for (int s = 0; s < S; ++s) {
      float* const row = shared + ((s * cover.lanes + lane) * cover.packs + side) * V;  // in large stores
#pragma unroll
      for (int v = 0; v < V; ++v) row[v] = sums[r * S + s][v];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S * count; i += width) {
      const int s = i / count, c = i % count;
      float sum = 0.f;
      for (int l = 0; l < cover.lanes; ++l) sum += shared[(s * cover.lanes + l) * count + c];
      if (first + c < C) parts[(r * S + s) * C + c] = sum;
    }
  }
}

// Adds slabs, of an element by parts * parts threads, each of which has some: then a few of them add what
// `parts` have, and one what those have.  Elements side by side are a sector of memory at least.
constexpr int kAdding = 512;  // threads of a block

template <typename Out, int parts>
__global__ void __launch_bounds__(kAdding)
    slabs_added(const float* __restrict__ slab, Out* __restrict__ out, int taps, int channels, int slabs) {
  constexpr int kDown = parts * parts, kAcross = kAdding / kDown;
  __shared__ float shared[kDown][kAcross];
  __shared__ float few[parts][kAcross];
  begin();
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int64_t all = int64_t{taps} * channels, i = int64_t{blockIdx.x} * kAcross + across;
  float sum = 0;
  if (i < all) {
#pragma unroll 8
    for (int one = down; one < slabs; one += kDown) sum += slab[one * all + i];
  }
  shared[down][across] = sum;
  __syncthreads();
  if (down < parts) {
    sum = shared[down * parts][across];
#pragma unroll
    for (int part = 1; part < parts; ++part) sum += shared[down * parts + part][across];
    few[down][across] = sum;
  }
  __syncthreads();
  if (down > 0 || i >= all) return;
#pragma unroll
  for (int part = 1; part < parts; ++part) sum += few[part][across];
  const int64_t tap = i / channels, channel = i % channels;
  out[channel * taps + tap] = narrow<Out>(sum);
}

template <typename T, typename Out, typename After, int V, int C, int R, int S, int SR, int SS, int TQ,
          int B, int F, int D>
int depthwise_sums_wgrad(const RelayWgradDirectCall& z, cudaStream_t stream) {
  if (z.c != C) return -static_cast<int>(cudaErrorInvalidValue);
  const int strips = divided(z.q, TQ), ramp = divided(R, SR) - 1;
  const int chunk = chunk_of(z.n, z.p, strips, C / V, ramp, F, B);
  if (too_many(z.n, strips, divided(z.p, chunk))) return -static_cast<int>(cudaErrorInvalidValue);
  const Cover cover = cover_of(z.n, C, strips, divided(z.p, chunk), V, B, sizeof(T));
  // As many blocks as run at once, with as many items each.
  const int most = std::max(1, kMultiprocessors * F / cover.groups);
  const int turns = divided(divided(cover.items, cover.lanes), most);
  const int slabs = divided(divided(cover.items, cover.lanes), turns);
  if (z.wanted != nullptr) {
    *z.wanted = int64_t{4} * slabs * R * S * C;
    return 0;
  }
  const cudaError_t error = launch(rows_sums<T, V, C, R, S, SR, SS, TQ, B, F, D>,
                                   dim3(static_cast<unsigned>(slabs) * cover.groups),
                                   cover.packs * cover.lanes, stream, z, cover, chunk, slabs);
  if (error != cudaSuccess) return finished(error);
  // More threads for each of few elements: all slabs are asked for at once.  Of 4,320 a launch took 0.7 µs
  // less on an H200, of 16,800, whose blocks do not run at once, 2 more.
  constexpr int64_t all = int64_t{R} * S * C;
  constexpr int parts = all <= 5000 ? 8 : 4, across = kAdding / (parts * parts);
  return finished(launch(slabs_added<Out, parts>, dim3(static_cast<unsigned>((all + across - 1) / across)),
                         kAdding, stream, static_cast<const float*>(z.workspace),
                         static_cast<Out*>(z.result), R * S, C, slabs));
}

}  // namespace
