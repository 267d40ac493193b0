// A convolution's data gradient (dgrad) by cuDNN 9's graph API, in its C form: the "backend" API.
// Written by relay-wgrad's `emit` for one problem:
//   dgrad n=2 c=6 h=9 w=8 k=4 r=3 s=2 stride=2,1 pad=1,0,2,1 dil=1,2 groups=2 layout=NCHW/OIHW/NCHW dtype=f64/f64/f64
//
// Host code only: no nvcc.  With NVIDIA's Python packages (the last command is one line):
//
//   pip install nvidia-cudnn-cu13 nvidia-cuda-runtime nvidia-cuda-crt
//   NV=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])')
//   g++ -std=c++17 -O2 program.cc -o program -I$NV/cudnn/include -I$NV/cu13/include
//       $NV/cudnn/lib/libcudnn.so.9 $NV/cu13/lib/libcudart.so.13
//       -Wl,-rpath,$NV/cudnn/lib:$NV/cu13/lib
//
// With cuDNN and CUDA on the system, options -I/usr/local/cuda/include -L/usr/local/cuda/lib64
// -lcudnn -lcudart instead.
//
// cuDNN names tensors by their role in the forward convolution, in a gradient too:
//   x  data    N images,  C channels,           H rows, W columns
//   w  filter  K filters, C / groups channels,  R rows, S columns
//   y  output  N images,  K channels,           P rows, Q columns
// Here dy (the gradient of y) and w are given, and dx, the gradient of x, is computed.
//
// A transposed convolution (ConvTranspose2d in PyTorch, Conv2DTranspose in Keras and TensorFlow) is
// exactly this operation.  Its input is our dy and its output our dx, so its input channels are K
// and its output channels C.  Keras' Conv2DTranspose(128, 2, strides=2) on an 8×8 image of 256
// channels is K = 256, C = 128, R = S = 2, P = Q = 8, H = W = 16.  H and W have to be said: with a
// stride several sizes give the same P and Q, and frameworks choose by their "output padding".
// PyTorch's weight (in, out, R, S) is our w as it lies: K, C, R, S.  Keras' kernel (R, S, out, in)
// has to be transposed to (in, R, S, out), which is K, R, S, C.

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

// ---- the problem -------------------------------------------------------------------------------

constexpr int64_t N = 2, C = 6, H = 9, W = 8;
constexpr int64_t K = 4, P = 5, Q = 7;
constexpr int64_t R = 3, S = 2;
constexpr int64_t kGroups = 2;  // cuDNN is not told: it divides x's channels by w's
constexpr int64_t Cg = C / kGroups;  // channels that a filter sees, K / kGroups filters a group

using Dims = std::vector<int64_t>;
const Dims kStride = {2, 1}, kDilation = {1, 2};  // rows, columns
const Dims kPrePadding = {1, 0}, kPostPadding = {2, 1};  // top, left; bottom, right

constexpr cudnnDataType_t kComputeType = CUDNN_DATA_DOUBLE;  // products are summed in float64
using Scalar = double;  // of alpha and beta
constexpr int64_t kWorkspaceLimit = 268474368;  // bytes
constexpr double kTolerance = 1e-12;  // for float64

// Dimensions are always in the order N C H W (K C R S for w).  A layout is not a name but strides:
// how many elements to step for the next index.  In NHWC the next channel is the next element, so
// C's stride is 1; the next column is C elements on, the next row W * C, the next image H * W * C.
struct Tensor {
  const char* name;
  int64_t id;  // any number that no other tensor of the graph has
  cudnnDataType_t type;
  Dims dims, strides;

  int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t offset(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
  }
};
const Tensor x = {"dx", 1, CUDNN_DATA_DOUBLE, {N, C, H, W},  // NCHW
                  {C * H * W, H * W, W, 1}};
const Tensor w = {"w", 2, CUDNN_DATA_DOUBLE, {K, Cg, R, S},  // KCRS
                  {Cg * R * S, R * S, S, 1}};
const Tensor y = {"dy", 3, CUDNN_DATA_DOUBLE, {N, K, P, Q},  // NKPQ
                  {K * P * Q, P * Q, Q, 1}};
using First = double;  // the elements of dy, w and dx
using Second = double;
using Result = double;

// ---- the second opinion: the definition, in double precision, for one element of the result ----

// dx[n,c,h,w] = sum of dy[n,k,p,q] * w[k,c,r,s] over k and the taps r,s that read x[n,c,h,w] for
// some p,q: those with p*stride + r*dilation - padding = h, and likewise in the columns.
double reference(const std::vector<First>& dys, const std::vector<Second>& ws, int64_t n, int64_t c,
                 int64_t row, int64_t col) {
  const int64_t filters = K / kGroups, k0 = c / Cg * filters;  // the group's first filter
  double sum = 0;
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t s = 0; s < S; ++s) {
      const int64_t ps = row + kPrePadding[0] - r * kDilation[0], p = ps / kStride[0];
      const int64_t qs = col + kPrePadding[1] - s * kDilation[1], q = qs / kStride[1];
      if (ps < 0 || ps % kStride[0] || p >= P || qs < 0 || qs % kStride[1] || q >= Q) continue;
      for (int64_t k = k0; k < k0 + filters; ++k) {
        sum += double(dys[y.offset(n, k, p, q)]) * double(ws[w.offset(k, c % Cg, r, s)]);
      }
    }
  }
  return sum;
}

// Uniform in [-1, 1), rounded to the element's type: the reference sees what cuDNN sees.
template <class T>
std::vector<T> random_values(const Tensor& tensor, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<T> values(size_t(tensor.size()));
  for (T& value : values) value = T(float(int32_t(generator())) / 2147483648.0f);
  return values;
}

// ---- cuDNN's descriptors -----------------------------------------------------------------------

[[noreturn]] void fail(const std::string& what, const std::string& why) {
  std::fprintf(stderr, "failed to %s: %s\n", what.c_str(), why.c_str());
  std::exit(1);
}
std::string text(cudnnStatus_t status) {
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof detail);
  return std::string(cudnnGetErrorString(status)) + " " + detail;
}
void check(cudnnStatus_t status, const std::string& what) {
  if (status != CUDNN_STATUS_SUCCESS) fail(what, text(status));
}
void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) fail(what, cudaGetErrorString(status));
}

// An attribute goes as an untyped array with a tag for its type; these find the tag.
constexpr auto tag(int64_t) { return CUDNN_TYPE_INT64; }
constexpr auto tag(double) { return CUDNN_TYPE_DOUBLE; }
constexpr auto tag(void*) { return CUDNN_TYPE_VOID_PTR; }
constexpr auto tag(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
constexpr auto tag(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
constexpr auto tag(cudnnConvolutionMode_t) { return CUDNN_TYPE_CONVOLUTION_MODE; }
constexpr auto tag(cudnnBackendHeurMode_t) { return CUDNN_TYPE_HEUR_MODE; }

// A backend descriptor: created, given its attributes, finalized, used, destroyed.
struct Descriptor {
  std::string name;
  cudnnBackendDescriptor_t raw = nullptr;

  Descriptor(cudnnBackendDescriptorType_t type, std::string what) : name(std::move(what)) {
    check(cudnnBackendCreateDescriptor(type, &raw), "create the " + name);
  }
  explicit Descriptor(const Tensor& tensor)
      : Descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, std::string("tensor ") + tensor.name) {
    set(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor.id);
    set(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor.type);
    set(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.dims);
    set(CUDNN_ATTR_TENSOR_STRIDES, tensor.strides);
    set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t(16));  // cudaMalloc aligns to 256
    finalize();
  }
  ~Descriptor() { cudnnBackendDestroyDescriptor(raw); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, size_t count,
           const void* values) {
    check(cudnnBackendSetAttribute(raw, attribute, type, int64_t(count), values),
          "set attribute " + std::to_string(attribute) + " of the " + name);
  }
  template <class T>
  void set(cudnnBackendAttributeName_t attribute, const std::vector<T>& values) {
    set(attribute, tag(T()), values.size(), values.data());
  }
  template <class T>
  void set(cudnnBackendAttributeName_t attribute, T value) {
    set(attribute, tag(value), 1, &value);
  }
  void set(cudnnBackendAttributeName_t attribute, const Descriptor& value) {
    set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.raw);
  }
  int64_t get(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, size_t most,
              void* values) const {  // how many values there are
    int64_t count = 0;
    check(cudnnBackendGetAttribute(raw, attribute, type, int64_t(most), &count, values),
          "read attribute " + std::to_string(attribute) + " of the " + name);
    return count;
  }
  void finalize() { check(cudnnBackendFinalize(raw), "finalize the " + name); }
};

// The engine configurations that cuDNN's heuristics propose, the best first.
std::list<Descriptor> proposals(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  std::list<Descriptor> configs;
  if (cudnnBackendFinalize(heuristics.raw) != CUDNN_STATUS_SUCCESS) return configs;  // has none
  // What is read is copied into descriptors that the caller has created.
  const auto read = [&](std::vector<cudnnBackendDescriptor_t> into) {
    return heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, into.size(),
                          into.data());
  };
  std::vector<cudnnBackendDescriptor_t> raws(size_t(read({})));
  for (auto& raw : raws) {
    raw = configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration").raw;
  }
  for (int64_t count = read(raws); int64_t(configs.size()) > count;) configs.pop_back();
  return configs;
}

// ---- the program -------------------------------------------------------------------------------

using Memory = std::unique_ptr<void, void (*)(void*)>;

Memory on_device(const void* values, size_t bytes) {  // a copy of `values`, unless they are null
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<size_t>(bytes, 1)), "allocate on the GPU");
  if (values) check(cudaMemcpy(memory, values, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
  return Memory(memory, [](void* p) { cudaFree(p); });
}

int main() {
  const Tensor &first = y, &second = w, &result = x;
  const auto firsts = random_values<First>(first, 1);
  const auto seconds = random_values<Second>(second, 2);
  std::vector<Result> results(size_t(result.size()));
  const size_t result_bytes = results.size() * sizeof(Result);

  int driver = 0;
  if (cudaDriverGetVersion(&driver); driver == 0) fail("find a GPU", "no NVIDIA driver is here");
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "find a GPU");
  cudnnHandle_t handle;
  check(cudnnCreate(&handle), "create a cuDNN handle");
  const std::unique_ptr<cudnnContext, decltype(&cudnnDestroy)> owner(handle, cudnnDestroy);
  std::printf("%s, cuDNN %zu\n", device.name, cudnnGetVersion());

  const Memory first_memory = on_device(firsts.data(), firsts.size() * sizeof(First));
  const Memory second_memory = on_device(seconds.data(), seconds.size() * sizeof(Second));
  const Memory result_memory = on_device(nullptr, result_bytes);
  // All bits set is a NaN in each of the types: what is not written does not go unnoticed.
  check(cudaMemset(result_memory.get(), 0xFF, result_bytes), "poison the result");

  // 1. The tensors, and the convolution, whose filter is not mirrored: a cross-correlation.
  const Descriptor x_descriptor(x), w_descriptor(w), y_descriptor(y);
  Descriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
  convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t(2));
  convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, kComputeType);
  convolution.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  convolution.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, kStride);
  convolution.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, kDilation);
  convolution.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, kPrePadding);
  convolution.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, kPostPadding);
  convolution.finalize();

  // 2. The operation, dx = alpha * (...) + beta * dx, and a graph of it alone.
  Descriptor operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "operation");
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, y_descriptor);
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, w_descriptor);
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, x_descriptor);
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, convolution);
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, Scalar(1));
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, Scalar(0));
  operation.finalize();
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finalize();

  // 3. A plan: of the engines that cuDNN proposes, the first that can do it within the workspace.
  // A program that runs its plan often would time the first few, and keep the fastest.
  std::list<Descriptor> configs = proposals(graph, CUDNN_HEUR_MODE_A);
  configs.splice(configs.end(), proposals(graph, CUDNN_HEUR_MODE_FALLBACK));
  std::unique_ptr<Descriptor> plan;
  int64_t workspace_bytes = 0;
  int tried = 0;
  std::string why = "none was proposed";
  for (const Descriptor& config : configs) {
    ++tried;
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
    config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine.raw);
    int64_t index = -1;
    engine.get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    auto candidate = std::make_unique<Descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan");
    candidate->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
    candidate->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    const cudnnStatus_t status = cudnnBackendFinalize(candidate->raw);
    if (status != CUDNN_STATUS_SUCCESS) {
      why = text(status);
      continue;
    }
    candidate->get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace_bytes);
    if (workspace_bytes > kWorkspaceLimit) {
      why = "its workspace would be " + std::to_string(workspace_bytes) + " bytes";
      continue;
    }
    std::printf("engine %d, number %d of %zu proposals, workspace %.1f MiB\n", int(index), tried,
                configs.size(), double(workspace_bytes) / (1 << 20));
    plan = std::move(candidate);
    break;
  }
  if (!plan) {
    std::fprintf(stderr, "The padding is asymmetric, which engines may refuse.  Remedy:\n"
                         "compute dx with its padding as a part of H and W, and crop it.\n");
  }
  if (!plan) fail("find an engine among " + std::to_string(tried) + "; of the last one", why);

  // 4. The variant pack says which memory each tensor has.
  const Memory workspace = on_device(nullptr, size_t(workspace_bytes));
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Dims{first.id, second.id, result.id});
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
           std::vector<void*>{first_memory.get(), second_memory.get(), result_memory.get()});
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace.get());
  pack.finalize();
  const auto run = [&] { check(cudnnBackendExecute(handle, plan->raw, pack.raw), "execute"); };
  run();
  check(cudaMemcpy(results.data(), result_memory.get(), result_bytes, cudaMemcpyDeviceToHost),
        "copy the result from the GPU");

  // 5. Is it right?  Every element must be written; of a large result a random sample is compared.
  constexpr int64_t kTerms = K / kGroups * R * S;  // products in a sum
  const int64_t count = std::min(result.size(), std::max<int64_t>(128, (1 << 28) / kTerms));
  std::mt19937_64 generator(3);
  double difference = 0, norm = 0;
  for (int64_t n = 0; n < count; ++n) {
    int64_t at[4], rest = count == result.size() ? n : int64_t(generator() % size_t(result.size()));
    for (size_t i = 4; i-- > 0; rest /= result.dims[i]) at[i] = rest % result.dims[i];
    const double want = reference(firsts, seconds, at[0], at[1], at[2], at[3]);
    const double got = double(results[size_t(result.offset(at[0], at[1], at[2], at[3]))]);
    difference += (got - want) * (got - want);
    norm += want * want;
  }
  const auto unwritten = std::count_if(results.begin(), results.end(),
                                       [](Result value) { return std::isnan(double(value)); });
  const double error = std::sqrt(difference / norm);
  const bool right = unwritten == 0 && error <= kTolerance;
  std::printf("%s: relative error %.2g, tolerance %.2g, %.0f of %.0f elements compared, %.0f NaN\n",
              right ? "right" : "WRONG", error, kTolerance, double(count), double(result.size()),
              double(unwritten));

  // 6. How fast?  Events on the stream, around many runs, leave out the host's work.
  constexpr int kRuns = 50;
  cudaEvent_t start, stop;
  for (cudaEvent_t* event : {&start, &stop}) check(cudaEventCreate(event), "create an event");
  for (int i = 0; i < 5; ++i) run();
  check(cudaEventRecord(start), "record an event");
  for (int i = 0; i < kRuns; ++i) run();
  check(cudaEventRecord(stop), "record an event");
  check(cudaEventSynchronize(stop), "run the plan");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, start, stop), "read the events");
  const double flop = 2.0 * N * P * Q * K * Cg * R * S * kRuns;
  std::printf("%.4f ms, %.1f TFLOP/s\n", milliseconds / kRuns, flop / milliseconds / 1e9);
  return right ? 0 : 1;
}
