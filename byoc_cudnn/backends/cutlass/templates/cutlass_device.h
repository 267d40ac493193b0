// ---- an implicit GEMM of CUTLASS's 2.x API, ready to be launched -----------------------------------

#include <atomic>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/conv/kernel/default_conv2d.h"  // before the next one, which does not include it
#include "cutlass/conv/kernel/implicit_gemm_convolution_strided_dgrad.h"
#include "cutlass/conv/threadblock/implicit_gemm_pipelined.h"
#include "cutlass/conv/device/implicit_gemm_convolution.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/thread/scale_type.h"
#include "cutlass/layout/tensor.h"
#include "cutlass/numeric_types.h"

namespace {

using cutlass::arch::OpClassSimt;
using cutlass::arch::OpClassTensorOp;
using cutlass::conv::IteratorAlgorithm;
using cutlass::conv::StrideSupport;
using cutlass::gemm::GemmShape;
using cutlass::layout::TensorNHWC;

// By approximate functions: 2 ulp more, and a fraction of the time that a division in full takes.
CUTLASS_HOST_DEVICE float silu(float value) {
#if defined(__CUDA_ARCH__)
  return __fdividef(value, 1.0f + __expf(-value));
#else
  return value / (1.0f + expf(-value));
#endif
}

// What becomes of a sum on its way to the result, in float32.  The mask passes the sum where its
// operand is 0 or NaN, as where(less(x, 0), 0, sum) does; the strict one, where(less_equal(x, 0), 0, sum),
// not where it is 0.
template <typename Element, int kCount_, bool kAdd, bool kRelu, bool kRelu6, bool kSilu, bool kMask,
          bool kStrictMask>
struct OutputOp {
  using ElementOutput = Element;
  using ElementSource = Element;
  using ElementC = Element;
  using ElementD = Element;
  using ElementAccumulator = float;
  using ElementCompute = float;
  using ElementScalar = float;
  static int const kCount = kCount_;
  static cutlass::epilogue::thread::ScaleType::Kind const kScale =
      cutlass::epilogue::thread::ScaleType::Default;
  using FragmentOutput = cutlass::Array<Element, kCount>;
  using FragmentSource = FragmentOutput;
  using FragmentAccumulator = cutlass::Array<float, kCount>;
  struct Params {};

  CUTLASS_HOST_DEVICE explicit OutputOp(Params const&) {}
  CUTLASS_HOST_DEVICE bool is_source_needed() const { return kAdd || kMask || kStrictMask; }
  CUTLASS_HOST_DEVICE void set_k_partition(int, int) {}

  CUTLASS_HOST_DEVICE FragmentOutput operator()(FragmentAccumulator const& sums,
                                                FragmentOutput const& source) const {
    FragmentOutput out;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      float value = sums[i];
      if (kAdd) value += float(source[i]);
      if (kRelu || kRelu6) value = value < 0.0f ? 0.0f : value;
      if (kRelu6) value = value > 6.0f ? 6.0f : value;
      if (kSilu) value = silu(value);
      if (kMask) value = float(source[i]) < 0.0f ? 0.0f : value;
      if (kStrictMask) value = float(source[i]) <= 0.0f ? 0.0f : value;
      out[i] = Element(value);
    }
    return out;
  }
  CUTLASS_HOST_DEVICE FragmentOutput operator()(FragmentAccumulator const& sums) const {
    return (*this)(sums, FragmentOutput());
  }
};

// Reads tiles for a strided dgrad in two stages.  CUTLASS's own (TileIteratorStridedDgrad, still in
// 4.2) reads one access for each vector of 16 bytes, so where accesses are narrower it leaves out
// operands, and then goes astray.
template <typename Access>
class StridedTiles {
 public:
  using TileAccessIterator = Access;
  using Shape = typename Access::Shape;
  using Element = typename Access::Element;
  using Layout = typename Access::Layout;
  using TensorCoord = typename Access::TensorCoord;
  using ThreadMap = typename Access::ThreadMap;
  using AccessType = typename Access::AccessType;
  using TensorRef = typename Access::TensorRef;
  using Index = typename Access::Index;
  using LongIndex = typename Access::LongIndex;
  using Params = typename Access::Params;
  using ConvProblemSize = typename Access::ConvProblemSize;
  static IteratorAlgorithm const kIteratorAlgorithm = Access::kIteratorAlgorithm;
  static StrideSupport const kStrideSupport = Access::kStrideSupport;
  static int const kConvDim = Access::kConvDim;
  using Fragment = cutlass::Array<Element, ThreadMap::Iterations::kCount * ThreadMap::kElementsPerAccess>;

  template <typename... Arguments>
  CUTLASS_HOST_DEVICE explicit StridedTiles(Arguments const&... arguments) : access_(arguments...) {}
  CUTLASS_HOST_DEVICE static Params getParams(ConvProblemSize const& size, Layout const& layout) {
    return Access::getParams(size, layout);
  }
  CUTLASS_HOST_DEVICE static cutlass::Status can_implement(ConvProblemSize const& size) {
    return Access::can_implement(size);
  }
  CUTLASS_HOST_DEVICE StridedTiles& operator++() {
    access_.advance();
    return *this;
  }
  CUTLASS_DEVICE void load(Fragment& fragment) {
    fragment.clear();
    access_.set_iteration_index(0);
    AccessType* parts = reinterpret_cast<AccessType*>(&fragment);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < ThreadMap::Iterations::kCount * Access::kAccessesPerVector; ++i) {
      cutlass::arch::global_load<AccessType, sizeof(AccessType)>(parts[i], access_.get(),
                                                                 access_.valid());
      ++access_;
    }
  }

 private:
  Access access_;
};

// A strided dgrad of two stages as CUTLASS defines it, with `StridedTiles`.
template <typename Default>
using StridedInTwoStages = cutlass::conv::kernel::ImplicitGemmConvolutionStridedDgrad<
    cutlass::conv::threadblock::ImplicitGemmPipelined<
        typename Default::MmaCore::Shape,
        StridedTiles<typename Default::IteratorA::TileAccessIterator>,
        typename Default::SmemIteratorA,
        StridedTiles<typename Default::IteratorB::TileAccessIterator>,
        typename Default::SmemIteratorB, typename Default::Mma::ElementC,
        typename Default::Mma::LayoutC, typename Default::MmaPolicy>,
    typename Default::Epilogue, typename Default::Kernel::ThreadblockSwizzle,
    cutlass::conv::Operator::kDgrad>;

// Launches; the device and its stream are the caller's.  CUTLASS's own launcher would clear the
// slices' memory first, and set the kernel's attribute at every call.
template <typename Kernel, bool kBias>
int launch(const RelayWgradCall& z, cudaStream_t stream) {
  using Device = cutlass::conv::device::ImplicitGemmConvolution<Kernel>;
  using cutlass::conv::Operator;
  constexpr Operator kKind = Kernel::kConvolutionalOperator;
  cutlass::conv::Conv2dProblemSize size(z.n, z.h, z.w, z.c, z.k, z.r, z.s, z.p, z.q, z.pad[0],
                                        z.pad[1], z.stride[0], z.stride[1], z.dilation[0],
                                        z.dilation[1], cutlass::conv::Mode::kCrossCorrelation,
                                        z.slices);
  const TensorNHWC data = TensorNHWC::packed({z.n, z.h, z.w, z.all_c});
  const TensorNHWC weight = TensorNHWC::packed({z.k, z.r, z.s, z.c});
  const TensorNHWC grad = TensorNHWC::packed({z.n, z.p, z.q, z.all_k});
  const TensorNHWC first = kKind == Operator::kFprop ? data : grad;
  const TensorNHWC second = kKind == Operator::kWgrad ? data : weight;
  const TensorNHWC result = kKind == Operator::kFprop   ? grad
                            : kKind == Operator::kDgrad ? data
                                                        : weight;
  // A bias is one row for all pixels: a tensor without strides.
  const TensorNHWC source = kBias ? TensorNHWC(TensorNHWC::Stride(0)) : result;
  auto writable = [](const void* p) { return const_cast<void*>(p); };
  typename Kernel::Arguments args(
      size, {static_cast<typename Kernel::ElementA*>(writable(z.first)), first},
      {static_cast<typename Kernel::ElementB*>(writable(z.second)), second},
      {static_cast<typename Kernel::ElementC*>(writable(z.source)), source},
      {static_cast<typename Kernel::ElementC*>(z.result), result}, {},
      cutlass::conv::SplitKMode::kParallel);
  const cutlass::Status status = Device::can_implement(args);
  if (status != cutlass::Status::kSuccess) return static_cast<int>(status);

  constexpr int kShared = static_cast<int>(sizeof(typename Kernel::SharedStorage));
  if (kShared > (48 << 10)) {
    static std::atomic<uint64_t> ready{0};  // a bit for each device
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    const uint64_t bit = uint64_t{1} << (device & 63);
    if (error == cudaSuccess && (device > 63 || !(ready.load() & bit))) {
      error = cudaFuncSetAttribute(cutlass::Kernel<Kernel>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      if (error == cudaSuccess) ready.fetch_or(bit);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();  // this error is reported here; the next call is not to see it
      return -static_cast<int>(error);
    }
  }
  const typename Kernel::Params params(args, nullptr);
  typename Kernel::ThreadblockSwizzle swizzle;
  const dim3 grid = swizzle.get_grid_shape(params.grid_tiled_shape);
  cutlass::Kernel<Kernel><<<grid, dim3(Kernel::kThreadCount), kShared, stream>>>(params);
  return -static_cast<int>(cudaGetLastError());
}

}  // namespace
