// ---- a convolution of CUTLASS's 3.x API: Hopper's wgmma, fed by TMA -----------------------------------

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/kernel_hardware_info.h"

#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/conv/convnd_problem_shape.hpp"
#include "cutlass/conv/convolution.h"
#include "cutlass/conv/device/conv_universal_adapter.hpp"
#include "cutlass/conv/dispatch_policy.hpp"
#include "cutlass/conv/kernel/conv_universal.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"

namespace {

// fprop, or dgrad of stride 1.  The result has no source: the sums are rounded and written.
template <cutlass::conv::Operator kKind, typename Element, typename Result, int kM, int kN, int kK,
          int kStages>
int launch(const RelayWgradCall& z, cudaStream_t stream) {
  using Layout = cutlass::layout::TensorNHWC;
  using Tile = cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::Shape<cute::Int<kK>>>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
  constexpr int kOperand = 128 / cutlass::sizeof_bits<Element>::value;
  constexpr int kResult = 128 / cutlass::sizeof_bits<Result>::value;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Layout, kResult, Result,
      Layout, kResult, cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
  using Mainloop = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, kKind, Element, Layout, kOperand, Element,
      Layout, kOperand, float, Tile, Cluster, cutlass::conv::collective::StageCount<kStages>,
      cutlass::conv::collective::KernelScheduleAuto>::CollectiveOp;
  using Problem = cutlass::conv::ConvProblemShape<kKind, 2>;
  using Kernel = cutlass::conv::kernel::ConvUniversal<Problem, Mainloop, Epilogue>;
  using Device = cutlass::conv::device::ConvUniversalAdapter<Kernel>;

  // The padding after the data is what the output's size leaves.
  auto after = [](int out, int size, int taps, int pad, int stride, int dilation) {
    const int wanted = (out - 1) * stride + dilation * (taps - 1) + 1 - size - pad;
    return wanted > 0 ? wanted : 0;
  };
  const int below = after(z.p, z.h, z.r, z.pad[0], z.stride[0], z.dilation[0]);
  const int right = after(z.q, z.w, z.s, z.pad[1], z.stride[1], z.dilation[1]);
  const Problem problem(cutlass::conv::Mode::kCrossCorrelation, {z.n, z.h, z.w, z.c},
                        {z.k, z.r, z.s, z.c}, {z.pad[0], z.pad[1]}, {below, right},
                        {z.stride[0], z.stride[1]}, {z.dilation[0], z.dilation[1]}, 1);
  using Stride = typename Kernel::StrideD;
  Stride stride{};
  cute::for_each(cute::make_seq<cute::rank<0>(Stride{})>{}, [&](auto i) {
    cute::get<0, i>(stride) = problem.stride_C[Problem::RankT - 2 - i];
  });
  const typename Device::Arguments args{
      problem,
      {static_cast<const Element*>(z.first), static_cast<const Element*>(z.second)},
      {{1.0f, 0.0f}, nullptr, stride, static_cast<Result*>(z.result), stride}};
  if (Device::can_implement(args) != cutlass::Status::kSuccess) {
    return static_cast<int>(cutlass::Status::kErrorNotSupported);
  }
  Device device;
  cutlass::Status status = device.initialize(args, nullptr, stream);
  if (status == cutlass::Status::kSuccess) status = device.run(stream);
  return static_cast<int>(status);
}

}  // namespace
