// ---- what is called of cuBLAS -------------------------------------------------------------------------
//
// Its library is opened when it is first needed, so that a module loads where there is none; its header
// is not needed.  Names and numbers are those of its interface, which has kept them since CUDA 11.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <library_types.h>

#include <cstdint>

namespace {

using CublasHandle = struct cublasContext*;

enum CublasOperation : int { kPlain = 0, kTransposed = 1 };
enum CublasCompute : int { kCompute32F = 68, kCompute64F = 70, kCompute32FFastTf32 = 77 };
constexpr int kHostPointers = 0, kDefaultAlgorithm = -1;
constexpr int kNoReducedPrecisionReduction = 16;  // of a math mode: sums of parts are float32 too

struct Cublas {
  int (*create)(CublasHandle*);
  int (*set_stream)(CublasHandle, cudaStream_t);
  int (*set_workspace)(CublasHandle, void*, size_t);
  int (*set_math_mode)(CublasHandle, int);
  int (*set_pointer_mode)(CublasHandle, int);
  const char* (*status)(int);
  int (*gemm)(CublasHandle, int, int, int, int, int, const void*, const void*, cudaDataType, int,
              long long, const void*, cudaDataType, int, long long, const void*, void*, cudaDataType,
              int, long long, int, int, int);
};

}  // namespace
