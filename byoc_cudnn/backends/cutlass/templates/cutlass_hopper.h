// ---- kernels of Hopper's own instructions: wgmma, fed by TMA ---------------------------------------
//
// The main loops are CUTLASS's 3.x collectives (`cutlass_hopper_implicit.h`, `cutlass_hopper_plain.h`).
// What is around them is here: blocks that stay and take one tile after another, sums that are cut into
// slices, and what becomes of a sum on its way to the result.

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/kernel_hardware_info.h"

#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/conv/convolution.h"
#include "cutlass/pipeline/sm90_pipeline.hpp"

namespace {

// After an error: it is reported here, and the next call is not to see it.
inline int failed(cudaError_t error) {
  cudaGetLastError();
  return -static_cast<int>(error);
}

using cute::Int;
using cute::Layout;
using cute::Shape;
using cutlass::conv::Operator;

// Two groups of warps multiply, one loads.  Together on one tile, or each on its own, in turn: then
// one writes its results while the other multiplies.
constexpr int kGroup = 128, kThreads = 3 * kGroup;

// ---- the kernel

// What a launch does: a convolution, or some phases of a strided dgrad, one after another.
template <class Config>
struct Phase {
  typename Config::Loader::Params operands;
  typename Config::Problem problem;  // M, N, K, L as the main loop has them
  int steps;                         // of a sum
  int m_clusters, first;             // of tiles: along M, and those before this phase
  Target target;
};
template <class Config>
struct Work {
  Phase<Config> phases[Config::kPhases];
  int count, clusters;  // phases, and clusters of tiles in all of them
  int n_clusters, n_parts, slices;
  // More than one wave of slices: each cluster of blocks gets an equal share of all steps instead, and a
  // tile's slices are the shares that it is in.
  bool shared;
};

template <class Mainloop>
struct Shared {
  typename Mainloop::TensorStorage tensors;
  alignas(16) typename Mainloop::PipelineStorage pipeline;
  alignas(16) typename cutlass::OrderedSequenceBarrier<1, 2>::SharedStorage turns;
};

struct Tile {
  int m, n, slice, begin, steps;  // the last two: of its sum
};

// A tile's steps of the sum, as CUTLASS's main loop loads them.
template <class Mainloop, class Inputs, class State>
__device__ void load_tile(const typename Mainloop::Params& operands,
                          typename Mainloop::MainloopPipeline& pipeline, const State& state,
                          const Inputs& inputs, const Tile& tile,
                          typename Mainloop::TensorStorage& tensors) {
  using namespace cute;
  auto a = get<0>(inputs);
  auto b = get<1>(inputs);
  auto where = make_coord(idx2crd(tile.m, shape<2>(a)), idx2crd(tile.n, shape<2>(b)), _, 0);
  auto step = make_coord_iterator(idx2crd(tile.begin, shape<3>(a)), shape<3>(a));
  Mainloop().load(operands, pipeline, state, inputs, where, step, tile.steps,
                  static_cast<int>(threadIdx.x % 32), block_rank_in_cluster(), tensors);
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 1) hopper(const __grid_constant__ Work<Config> work) {
  using namespace cute;
  using Mainloop = typename Config::Mainloop;
  using Cluster = typename Config::Cluster;
  using Pipeline = typename Mainloop::MainloopPipeline;
  extern __shared__ __align__(1024) char memory[];  // which swizzled tiles need
  auto& shared = *reinterpret_cast<Shared<Mainloop>*>(memory);
  const int group = cutlass::canonical_warp_group_idx();  // 0 loads
  const int warp = cutlass::canonical_warp_idx_sync();
  const bool loads = group == 0 && warp == 0;

  if (warp == 0 && elect_one_sync()) {
    for (int i = 0; i < work.count; ++i) {
      Config::Loader::prefetch_tma_descriptors(work.phases[i].operands);
    }
  }
  typename Pipeline::Params pipes;
  pipes.role = loads        ? Pipeline::ThreadCategory::Producer
               : group == 0 ? Pipeline::ThreadCategory::NonParticipant
                            : Pipeline::ThreadCategory::Consumer;
  pipes.is_leader = threadIdx.x % kGroup == 0;
  pipes.num_consumers = Config::kTogether ? 2 * kGroup : kGroup;
  pipes.transaction_bytes = Mainloop::TmaTransactionBytes;
  Pipeline pipeline(shared.pipeline, pipes, Cluster{});
  cutlass::OrderedSequenceBarrier<1, 2> turns(
      shared.turns, {static_cast<uint32_t>(group == 2), static_cast<uint32_t>(kGroup)});
  if constexpr (size(Cluster{}) > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }

  // Indices only grow, and with them phases.
  int phase = 0;
  auto phase_of = [&](int index) -> const Phase<Config>& {
    if constexpr (Config::kPhases == 1) return work.phases[0];
    while (phase + 1 < work.count && index >= work.phases[phase + 1].first) ++phase;
    return work.phases[phase];
  };
  // Tiles that share rows of the first operand follow each other, and slices are apart.
  auto tile_of = [&](const Phase<Config>& in, int index) {
    const int row = index / work.n_clusters;
    Tile tile;
    tile.n = (index - row * work.n_clusters) * size<1>(Cluster{}) + blockIdx.y;
    tile.slice = row / in.m_clusters;
    tile.m = (row - tile.slice * in.m_clusters) * size<0>(Cluster{}) + blockIdx.x;
    tile.begin = static_cast<int>(int64_t{in.steps} * tile.slice / work.slices);
    tile.steps = static_cast<int>(int64_t{in.steps} * (tile.slice + 1) / work.slices) - tile.begin;
    return tile;
  };
  // All tiles of this block, in order.
  auto for_tiles = [&](auto&& visit) {
    if constexpr (Config::kKind == Operator::kWgrad) {
      if (work.shared) {
        const int steps = work.phases[0].steps;
        const int64_t all = int64_t{work.clusters} / work.slices * steps;
        auto begin_of = [&](int64_t share) { return share * all / gridDim.z; };
        int64_t at = begin_of(blockIdx.z);
        const int64_t end = begin_of(blockIdx.z + 1);
        while (at < end) {
          const int index = static_cast<int>(at / steps);
          Tile tile = tile_of(work.phases[0], index);  // of the first slice
          tile.begin = static_cast<int>(at - int64_t{index} * steps);
          tile.steps = static_cast<int>(min(int64_t{steps} - tile.begin, end - at));
          // The share that the tile begins in is the last one to begin no later.
          const int64_t whole = int64_t{index} * steps;
          tile.slice = blockIdx.z - static_cast<int>(((whole + 1) * gridDim.z - 1) / all);
          visit(work.phases[0], tile);
          at += tile.steps;
        }
        return;
      }
    }
    for (int index = blockIdx.z; index < work.clusters; index += gridDim.z) {
      const Phase<Config>& in = phase_of(index);
      visit(in, tile_of(in, index - in.first));
    }
  };

  if (group == 0) {
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (!loads) return;
    // What adds a wgrad's slices may be launched, and waits until all of them are there.
    if constexpr (Config::kKind == Operator::kWgrad) asm volatile("griddepcontrol.launch_dependents;");
    auto state = cutlass::make_producer_start_state<Pipeline>();
    typename Config::Loader loader;
    auto load = [&](const Phase<Config>& in, auto& inputs, const Tile& tile) {
      Config::load(in.operands, pipeline, state, inputs, tile, shared.tensors);
      state.advance(tile.steps);
    };
    if constexpr (Config::kPhases == 1) {
      auto inputs = loader.load_init(work.phases[0].problem, work.phases[0].operands);
      for_tiles([&](const Phase<Config>& in, const Tile& tile) { load(in, inputs, tile); });
    } else {
      for_tiles([&](const Phase<Config>& in, const Tile& tile) {
        auto inputs = loader.load_init(in.problem, in.operands);
        load(in, inputs, tile);
      });
    }
    Mainloop().load_tail(pipeline, state);
    return;
  }

  cutlass::arch::warpgroup_reg_alloc<232>();
  typename Mainloop::TiledMma mma;
  const int thread = Config::kTogether ? threadIdx.x - kGroup : threadIdx.x % kGroup;
  using Block = Shape<Int<Config::kM>, Int<Config::kN>>;
  auto coordinates = mma.get_thread_slice(thread).partition_C(make_identity_tensor(Block{}));
  Mainloop mainloop;
  const typename Mainloop::Params unused{};  // by what multiplies
  typename Mainloop::PipelineState state;
  bool mine = group == 2;
  for_tiles([&](const Phase<Config>& in, const Tile& tile) {
    if constexpr (!Config::kTogether) {
      mine = !mine;
      if (!mine) {
        state.advance(tile.steps);
        return;
      }
      turns.wait();
    }
    auto sums = partition_fragment_C(mma, Block{});
    if (tile.steps == 0) clear(sums);
    mainloop.mma(pipeline, state, sums, tile.steps, thread, shared.tensors, unused);
    if constexpr (!Config::kTogether) turns.arrive();
    mainloop.mma_tail(pipeline, state, tile.steps);
    state.advance(tile.steps);
    auto write_slice = [&](int slice) {
      constexpr int kPart = Config::kN / Config::kTaps / 8;
      for_each(make_seq<Config::kTaps>{}, [&](auto tap) {
        const int part = tile.n * Config::kTaps + tap;
        if (part >= work.n_parts) return;
        write<typename Config::Result, Config::kEffect, Config::kBias, Config::kStrided, tap * kPart,
              (tap + 1) * kPart>(in.target, tile.m * Config::kM, part, slice, sums, coordinates);
      });
    };
    write_slice(tile.slice);
    if constexpr (Config::kKind == Operator::kWgrad) {
      // Who ends a tile writes zeros where it has fewer slices than others.
      if (work.shared && tile.begin + tile.steps == in.steps && tile.slice + 1 < work.slices) {
        clear(sums);
        for (int slice = tile.slice + 1; slice < work.slices; ++slice) write_slice(slice);
      }
    }
  });
}

// ---- launching

// What a kernel is made of.
template <Operator kKind_, typename Element_, typename Result_, int kM_, int kN_, int kK_, int kStages_,
          int kClusterM, int kClusterN, int kTaps_, bool kTogether_, Effect kEffect_, bool kBias_,
          bool kStrided_>
struct Choice {
  static constexpr Operator kKind = kKind_;
  using Element = Element_;
  using Result = Result_;
  using Cluster = Shape<Int<kClusterM>, Int<kClusterN>, cute::_1>;
  static constexpr int kM = kM_, kN = kN_, kK = kK_, kStages = kStages_;
  static constexpr int kTaps = kTaps_;  // of a wgrad: those that a tile's columns are of
  static constexpr int kPhases = kStrided_ ? 4 : 1;
  static constexpr int kAligned = 128 / cutlass::sizeof_bits<Element>::value;
  static constexpr bool kTogether = kTogether_, kBias = kBias_, kStrided = kStrided_;
  static constexpr Effect kEffect = kEffect_;
};

constexpr int kUnsupported = static_cast<int>(cutlass::Status::kErrorNotSupported);

// Lets the kernel have more than 48 KiB of shared memory; once for each device.
template <class Config>
cudaError_t allow_shared(int bytes, int device) {
  static std::atomic<uint64_t> ready{0};  // a bit for each device
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (device < 64 && (ready.load() & bit)) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(hopper<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) ready.fetch_or(bit);
  return error;
}

// Adds a phase to what a launch does.  `taps` are those of a wgrad's columns.
template <class Config>
int enlist(Work<Config>& work, const typename Config::Sizes& sizes,
           const typename Config::Loader::Arguments& operands, int m, int taps, int steps, Target to) {
  if (!Config::Loader::can_implement(sizes, operands)) return kUnsupported;
  constexpr int kClusterM = cute::size<0>(typename Config::Cluster{});
  constexpr int kClusterN = cute::size<1>(typename Config::Cluster{});
  auto parts = [](int64_t whole, int part) { return static_cast<int>((whole + part - 1) / part); };
  to.rows = m;
  to.channel_tiles = parts(to.channels, Config::kN / Config::kTaps);
  work.n_parts = to.channel_tiles * taps;
  work.n_clusters = parts(work.n_parts, Config::kTaps * kClusterN);
  const int m_clusters = parts(m, Config::kM * kClusterM);
  work.phases[work.count++] = {Config::Loader::to_underlying_arguments(sizes, operands, nullptr),
                               Config::problem(sizes), steps, m_clusters, work.clusters, to};
  work.clusters += m_clusters * work.n_clusters * work.slices;
  return 0;
}

template <class Config>
int start(Work<Config> work, cudaStream_t stream) {
  constexpr int kClusterM = cute::size<0>(typename Config::Cluster{});
  constexpr int kClusterN = cute::size<1>(typename Config::Cluster{});
  constexpr int kShared = static_cast<int>(sizeof(Shared<typename Config::Mainloop>));
  static_assert(kShared <= 227 << 10, "more shared memory than a block may have");
  int device = 0, units = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) error = allow_shared<Config>(kShared, device);
  if (error != cudaSuccess) return failed(error);
  const int resident = std::max(1, units / (kClusterM * kClusterN));
  const int blocks = std::min(work.clusters, resident);
  if (work.clusters > resident && work.slices > 1) {
    // A tile is in as many shares as begin in it, and in the one before.
    const int64_t steps = work.phases[0].steps, all = work.clusters / work.slices * steps;
    work.shared = (steps * blocks + all - 1) / all + 1 <= work.slices;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kClusterM, kClusterN, blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterM, kClusterN, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  error = cudaLaunchKernelEx(&config, hopper<Config>, work);
  return error == cudaSuccess ? 0 : failed(error);
}

// One that has one phase.
template <class Config>
int launch_one(const typename Config::Sizes& sizes, const typename Config::Loader::Arguments& operands,
               int m, int taps, int steps, int slices, const Target& to, cudaStream_t stream) {
  Work<Config> work{};
  work.slices = slices;
  const int status = enlist<Config>(work, sizes, operands, m, taps, steps, to);
  return status == 0 ? start<Config>(work, stream) : status;
}

// A call's result as rows of channels without gaps.
template <Operator kKind>
Target target_of(const RelayWgradCall& z) {
  Target to{};
  to.result = z.result;
  to.source = z.source;
  to.channels = kKind == Operator::kFprop ? z.k : z.c;
  to.pitch = to.channels;
  if (kKind == Operator::kWgrad) {
    to.pitch = int64_t{z.r} * z.s * z.c;
    to.slice = to.pitch * z.k;
  }
  return to;
}

}  // namespace
