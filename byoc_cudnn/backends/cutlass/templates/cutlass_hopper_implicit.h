// ---- a convolution as an implicit GEMM, by TMA's im2col mode ---------------------------------------

#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/conv/convnd_problem_shape.hpp"
#include "cutlass/conv/dispatch_policy.hpp"
#include "cutlass/util/packed_stride.hpp"

namespace {

// The same main loop, its instructions done by two groups of warps: CUTLASS's builder has no such one
// for convolutions.
template <class Built>
struct Doubled;
template <class Policy, class Tile, class A, class B, class Mma, class TraitsA, class TraitsB>
struct Doubled<cutlass::conv::collective::CollectiveConv<Policy, Tile, A, B, Mma, TraitsA, TraitsB>> {
  using Two = decltype(cute::make_tiled_mma(typename Mma::Atom{},
                                            Layout<Shape<cute::_2, cute::_1, cute::_1>>{}));
  using type = cutlass::conv::collective::CollectiveConv<Policy, Tile, A, B, Two, TraitsA, TraitsB>;
};
template <class Built>
struct Single {
  using type = Built;
};

template <class Choice>
struct ImplicitGemm : Choice {
  static constexpr bool kWgrad = Choice::kKind == Operator::kWgrad;
  using Layouts = cutlass::layout::TensorNHWC;
  using Sizes = cutlass::conv::ConvProblemShape<Choice::kKind, 2>;
  template <int kN, int kStages>
  using Built = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Choice::kKind, typename Choice::Element,
      Layouts, Choice::kAligned, typename Choice::Element, Layouts, Choice::kAligned, float,
      Shape<Int<Choice::kM>, cute::conditional_t<kWgrad, Shape<Int<kN>>, Int<kN>>,
            Shape<Int<Choice::kK>>>,
      typename Choice::Cluster, cutlass::conv::collective::StageCount<kStages>,
      cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  using Whole = Built<Choice::kN, Choice::kStages>;
  using Mainloop =
      typename cute::conditional_t<Choice::kTogether, Doubled<Whole>, Single<Whole>>::type;
  // Of one tap.  In shared memory a tile's taps follow each other, as stages do.
  using Loader = cute::conditional_t<
      Choice::kTaps == 1, Mainloop,
      Built<Choice::kN / Choice::kTaps, Choice::kStages * Choice::kTaps>>;
  using Problem = decltype(Loader::get_problem_shape_MNKL(Sizes{}));
  static Problem problem(const Sizes& sizes) { return Loader::get_problem_shape_MNKL(sizes); }

  template <class Inputs, class State>
  __device__ static void load(const typename Loader::Params& operands,
                              typename Mainloop::MainloopPipeline& pipeline, State state,
                              const Inputs& inputs, const Tile& tile,
                              typename Mainloop::TensorStorage& tensors) {
    if constexpr (Choice::kTaps == 1) {
      load_tile<Mainloop>(operands, pipeline, state, inputs, tile, tensors);
    } else {
      load_taps(operands, pipeline, state, inputs, tile, tensors);
    }
  }

  // As CUTLASS's main loop loads, but that the second operand comes in parts, one for each tap.
  template <class Inputs, class State>
  __device__ static void load_taps(const typename Loader::Params& operands,
                                   typename Mainloop::MainloopPipeline& pipeline, State state,
                                   const Inputs& inputs, const Tile& tile,
                                   typename Mainloop::TensorStorage& tensors) {
    using namespace cute;
    if (!elect_one_sync()) return;
    constexpr int kClusterM = size<0>(typename Choice::Cluster{});
    static_assert(size<1>(typename Choice::Cluster{}) == 1, "blocks share no rows here");
    const uint16_t to_all = kClusterM > 1 ? (1 << kClusterM) - 1 : 0;
    auto a = operands.tma_load_a.get_slice(0);
    auto b = operands.tma_load_b.get_slice(block_rank_in_cluster());
    auto tiles_a = get<0>(inputs);
    auto tiles_b = get<1>(inputs);
    auto from_a = a.partition_S(tiles_a(_, _, idx2crd(tile.m, shape<2>(tiles_a)), _));
    auto to_a = a.partition_D(
        make_tensor(make_smem_ptr(tensors.smem_A.data()), typename Mainloop::SmemLayoutA{}));
    auto to_b = b.partition_D(
        make_tensor(make_smem_ptr(tensors.smem_B.data()), typename Loader::SmemLayoutB{}));
    for (int step = tile.begin; step < tile.begin + tile.steps; ++step, ++state) {
      pipeline.producer_acquire(state);
      auto* barrier = pipeline.producer_get_barrier(state);
      copy(operands.tma_load_a.with(*barrier, 0), from_a(_, _, _, step), to_a(_, _, _, state.index()));
      for_each(make_seq<Choice::kTaps>{}, [&](auto tap) {
        const int part = tile.n * Choice::kTaps + tap;
        auto from_b = b.partition_S(tiles_b(_, _, idx2crd(part, shape<2>(tiles_b)), _));
        copy(operands.tma_load_b.with(*barrier, to_all), from_b(_, _, _, step),
             to_b(_, _, _, state.index() * Choice::kTaps + tap));
      });
    }
  }
};

template <class Choice>
int launch_implicit(const RelayWgradCall& z, cudaStream_t stream) {
  using Config = ImplicitGemm<Choice>;
  constexpr Operator kKind = Config::kKind;
  // The padding after the data is what the output's size leaves.
  auto rest = [](int out, int size, int taps, int pad, int stride, int dilation) {
    return std::max(0, (out - 1) * stride + dilation * (taps - 1) + 1 - size - pad);
  };
  const int below = rest(z.p, z.h, z.r, z.pad[0], z.stride[0], z.dilation[0]);
  const int right = rest(z.q, z.w, z.s, z.pad[1], z.stride[1], z.dilation[1]);
  const typename Config::Sizes sizes(cutlass::conv::Mode::kCrossCorrelation, {z.n, z.h, z.w, z.c},
                                     {z.k, z.r, z.s, z.c}, {z.pad[0], z.pad[1]}, {below, right},
                                     {z.stride[0], z.stride[1]}, {z.dilation[0], z.dilation[1]}, 1);
  auto depth = [](int whole) { return (whole + Config::kK - 1) / Config::kK; };
  const int m = kKind == Operator::kFprop ? z.n * z.p * z.q : kKind == Operator::kDgrad ? z.n * z.h * z.w : z.k;
  const int taps = z.r * z.s;
  const int steps = kKind == Operator::kFprop   ? depth(z.c) * taps
                    : kKind == Operator::kDgrad ? depth(z.k) * taps
                                                : depth(z.n * z.p * z.q);
  return launch_one<Config>(sizes,
                            {static_cast<const typename Config::Element*>(z.first),
                             static_cast<const typename Config::Element*>(z.second)},
                            m, kKind == Operator::kWgrad ? taps : 1, steps, z.slices,
                            target_of<kKind>(z), stream);
}

// A strided dgrad is one of stride 1 for each phase of the strides: of pixels that lie a stride apart,
// and of the taps that they meet.
struct Axis {
  int first, tap, taps, size, pad, fill;

  Axis(int first, int size, int taps, int pad, int stride)
      : first(first),
        tap((first + pad) % stride),
        taps((std::max(0, taps - tap) + stride - 1) / stride),
        size((std::max(0, size - first) + stride - 1) / stride),
        pad((first + pad) / stride),
        fill(taps < stride ? stride : 1) {}  // of a single tap, which the first phase meets
};

template <class Config>
int enlist_phase(Work<Config>& work, const RelayWgradCall& z, const Axis& y, const Axis& x) {
  const int64_t tap = z.c, line = tap * z.s, filter = line * z.r;
  typename Config::Sizes sizes(cutlass::conv::Mode::kCrossCorrelation, {z.n, y.size, x.size, z.c},
                               {z.k, y.taps, x.taps, z.c}, {y.pad, x.pad}, {0, 0}, {1, 1}, {1, 1}, 1);
  sizes.shape_A = {z.n, z.p, z.q, z.k};
  sizes.stride_A = {int64_t{z.p} * z.q * z.k, int64_t{z.q} * z.k, z.k, 1};
  sizes.stride_B = {filter, line * z.stride[0], tap * z.stride[1], 1};
  Target to = target_of<Operator::kDgrad>(z);
  to.wide = x.size, to.high = y.size, to.w = z.w, to.h = z.h;
  to.stride_w = z.stride[1], to.stride_h = z.stride[0];
  to.first_w = x.first, to.first_h = y.first, to.fill_w = x.fill, to.fill_h = y.fill;
  const auto* grad = static_cast<const typename Config::Element*>(z.first);
  const auto* weight = static_cast<const typename Config::Element*>(z.second);
  const int steps = (z.k + Config::kK - 1) / Config::kK * y.taps * x.taps;
  return enlist<Config>(work, sizes, {grad, weight + y.tap * line + x.tap * tap},
                        z.n * y.size * x.size, 1, steps, to);
}

template <class Choice>
int launch_strided(const RelayWgradCall& z, cudaStream_t stream) {
  using Config = ImplicitGemm<Choice>;
  std::vector<std::pair<Axis, Axis>> phases;
  for (int i = 0; i < z.stride[0] * z.stride[1]; ++i) {
    const Axis y(i / z.stride[1], z.h, z.r, z.pad[0], z.stride[0]);
    const Axis x(i % z.stride[1], z.w, z.s, z.pad[1], z.stride[1]);
    if (y.size == 0 || x.size == 0) continue;
    if (y.taps != 0 && x.taps != 0) {
      phases.emplace_back(y, x);
    } else if ((y.taps == 0 && (z.r != 1 || z.pad[0] % z.stride[0])) ||
               (x.taps == 0 && (z.s != 1 || z.pad[1] % z.stride[1]))) {
      return kUnsupported;  // the first phase fills only what follows a single tap's pixels
    }
  }
  // Long sums first: what is short fills the gaps at the end.
  auto taps = [](const std::pair<Axis, Axis>& phase) { return phase.first.taps * phase.second.taps; };
  std::stable_sort(phases.begin(), phases.end(),
                   [&](const auto& a, const auto& b) { return taps(a) > taps(b); });
  for (size_t begin = 0; begin < phases.size(); begin += Config::kPhases) {
    Work<Config> work{};
    work.slices = 1;
    const size_t end = std::min(begin + Config::kPhases, phases.size());
    for (size_t i = begin; i < end; ++i) {
      const int status = enlist_phase<Config>(work, z, phases[i].first, phases[i].second);
      if (status != 0) return status;
    }
    const int status = start<Config>(work, stream);
    if (status != 0) return status;
  }
  return 0;
}

}  // namespace
