// ---- a convolution that is a product of matrices: 1x1, of stride 1, without padding ----------------
//
// Only the parts for sm_90 of CUTLASS's 3.x GEMM are included; all of it takes twice the time.

#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
#include "cutlass/gemm/collective/builders/sm90_gmma_builder.inl"
#include "cutlass/util/packed_stride.hpp"

namespace {

template <class Choice>
struct PlainGemm : Choice {
  static constexpr bool kWgrad = Choice::kKind == Operator::kWgrad;
  static constexpr bool kFprop = Choice::kKind == Operator::kFprop;
  using Rows = cutlass::layout::RowMajor;
  using Columns = cutlass::layout::ColumnMajor;
  using Sizes = Shape<int, int, int, int>;  // M, N, K, L
  using Problem = Sizes;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Choice::Element,
      cute::conditional_t<kWgrad, Columns, Rows>, Choice::kAligned, typename Choice::Element,
      cute::conditional_t<kFprop, Columns, Rows>, Choice::kAligned, float,
      Shape<Int<Choice::kM>, Int<Choice::kN>, Int<Choice::kK>>, typename Choice::Cluster,
      cutlass::gemm::collective::StageCount<Choice::kStages>,
      cute::conditional_t<Choice::kTogether, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                          cutlass::gemm::KernelTmaWarpSpecializedPingpong>>::CollectiveOp;
  using Loader = Mainloop;
  static Problem problem(const Sizes& sizes) { return sizes; }

  template <class Inputs, class State>
  __device__ static void load(const typename Mainloop::Params& operands,
                              typename Mainloop::MainloopPipeline& pipeline, const State& state,
                              const Inputs& inputs, const Tile& tile,
                              typename Mainloop::TensorStorage& tensors) {
    load_tile<Mainloop>(operands, pipeline, state, inputs, tile, tensors);
  }
};

template <class Choice>
int launch_plain(const RelayWgradCall& z, cudaStream_t stream) {
  using Config = PlainGemm<Choice>;
  using Mainloop = typename Config::Mainloop;
  constexpr Operator kKind = Config::kKind;
  const int pixels = z.n * z.p * z.q;
  const int m = kKind == Operator::kWgrad ? z.k : pixels;
  const int n = kKind == Operator::kFprop ? z.k : z.c;
  const int k = kKind == Operator::kFprop ? z.c : kKind == Operator::kDgrad ? z.k : pixels;
  const auto a = cutlass::make_cute_packed_stride(typename Mainloop::StrideA{}, cute::make_shape(m, k, 1));
  const auto b = cutlass::make_cute_packed_stride(typename Mainloop::StrideB{}, cute::make_shape(n, k, 1));
  const typename Mainloop::Arguments operands{static_cast<const typename Config::Element*>(z.first), a,
                                              static_cast<const typename Config::Element*>(z.second), b};
  return launch_one<Config>({m, n, k, 1}, operands, m, 1, (k + Config::kK - 1) / Config::kK, z.slices,
                       target_of<kKind>(z), stream);
}

}  // namespace
