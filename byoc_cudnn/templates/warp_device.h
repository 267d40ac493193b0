// ---- what a warp does together: copies into shared memory, fragments, products ---------------------------

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace {

// A place in shared memory, in bytes.
using Spot = unsigned;

__device__ inline Spot spot_of(const void* shared) {
  return static_cast<Spot>(__cvta_generic_to_shared(shared));
}

// 16 bytes; zeros where they are not `there`, and then `from` is not read.
__device__ inline void copy_16(Spot to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}

// The same of 4.
__device__ inline void copy_4(Spot to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}

// 8, or zeros; a line of 128 bytes, which blocks beside this one read, comes closer.
__device__ inline void copy_8(Spot to, const void* from, unsigned bytes) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// A number that is kept in a register, where it would be computed again in each step.
__device__ inline void keep(unsigned& value) { asm volatile("" : "+r"(value)); }

// Elements beyond a place, by one instruction.
template <typename T>
__device__ inline const T* beyond(const T* at, unsigned elements) {
  const T* there;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(there) : "r"(elements), "n"(sizeof(T)), "l"(at));
  return there;
}

__device__ inline void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last `left` groups of copies of this thread are done.
template <int left>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// A gate of a block's warps, 8 bytes: what a warp did before it `arrives`, all have done who `pass`.
// Unlike a barrier it lets a warp go on to what needs nobody else's, products above all, meanwhile.
__device__ inline void gate_begin(Spot at, int warps) {
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(warps) : "memory");
  }
}

__device__ inline void gate_arrive(Spot at) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(at) : "memory");
  }
}

// The `turn`th time that all have arrived, from 0 on.
__device__ inline void gate_pass(Spot at, int turn) {
  unsigned passed;
  do {
    asm volatile(
        "{\n.reg .pred is;\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 is, [%1], %2;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 is, [%1], %2;\n"
#endif
        "selp.u32 %0, 1, 0, is;\n}"
        : "=r"(passed)
        : "r"(at), "r"(turn & 1)
        : "memory");
  } while (passed == 0);
}

// Matrices of 8 rows of 16 bytes: lane i tells where row i % 8 of matrix i / 8 is.  A register has of
// a matrix what lane i multiplies: elements 2 * (i % 4) and the next of row i / 4, or with `across`
// of column i / 4.
template <bool across>
__device__ inline void matrices_4(unsigned (&to)[4], Spot at) {
  if constexpr (across) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  }
}

// sums (16 × 8) += a (16 × 16) times b (16 × 8)
__device__ inline void multiply_16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                   __half) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply_16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                   __nv_bfloat16) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of the first 8 columns of a and rows of b.
__device__ inline void multiply_8(float (&sums)[4], const unsigned (&a)[4], unsigned b, __half) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

__device__ inline void multiply_8(float (&sums)[4], const unsigned (&a)[4], unsigned b,
                                  __nv_bfloat16) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

// 2 to the power of x, but for two units of the last place; 0 where that is not normal.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What another lane has: of that number, or whose number differs in these bits.
__device__ inline float from_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
__device__ inline float from_beside(float value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}

// Hopper and what is newer launch a kernel while the one before it ends; here that has ended.
__device__ inline void after_the_one_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline uint4 read_16(Spot at) {
  uint4 out;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(at)
               : "memory");
  return out;
}

__device__ inline void write_16(Spot at, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ inline unsigned read_4(Spot at) {
  unsigned v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

__device__ inline uint2 read_8(Spot at) {
  uint2 out;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(out.x), "=r"(out.y) : "r"(at) : "memory");
  return out;
}

__device__ inline void write_8(Spot at, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(v.x), "r"(v.y) : "memory");
}

__device__ inline unsigned read_2(Spot at) {
  unsigned short v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
  return v;
}

__device__ inline void write_4(Spot at, unsigned v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ inline void write_2(Spot at, unsigned short v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(v) : "memory");
}

__device__ inline void write_f(Spot at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

__device__ inline float read_f(Spot at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}

// The block's shared memory, which has as many bytes as the launch says.
extern __shared__ uint4 everything[];
__device__ inline Spot shared_memory() { return spot_of(everything); }

template <typename... Parameters, typename... Arguments>
cudaError_t launch_with(void (*kernel)(Parameters...), dim3 grid, int threads, int bytes,
                        cudaStream_t stream, Arguments... arguments) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess && bytes > 48 << 10) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace
