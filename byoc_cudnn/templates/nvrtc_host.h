// ---- the host's part of kernels that NVRTC has compiled ---------------------------------------------------
//
// A kernel's body is left out here, and its address tells it from others: it stands in a table with the
// names that the kernel has in each code, that of a GPU or PTX that the driver compiles.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __global__
#undef __device__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __align__
#define __global__ __attribute__((noinline))
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(n) alignas(n)

// Types that the host only counts the bytes of; their headers need more than the runtime's package has.
struct __half {
  unsigned short bits;
};
struct __nv_bfloat16 {
  unsigned short bits;
};

namespace {

// Machine code of a GPU, or PTX (`is_ptx`) for those that are as new or newer.
struct Code {
  int arch;  // 90 of sm_90
  bool is_ptx;
  const void* text;
};
// A kernel's function here, and its name in each code, in their order; the last has none.
struct KernelNames {
  const void* stub;
  const char* names[kCodeCount];
};
extern const Code kCodes[];

}  // namespace

extern "C" __attribute__((visibility("hidden"))) const KernelNames relay_wgrad_kernels[];

namespace {

// The driver's functions, which a program that has a GPU has loaded.
struct Driver {
  CUresult (*load)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                   unsigned) = nullptr;
  CUresult (*kernel)(CUkernel*, CUlibrary, const char*) = nullptr;
  CUresult (*set)(CUfunction_attribute, int, CUkernel, CUdevice) = nullptr;
  CUresult (*launch)(const CUlaunchConfig*, CUfunction, void**, void**) = nullptr;
  CUresult (*current)(CUcontext*) = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find(load, "cuLibraryLoadData");
    find(kernel, "cuLibraryGetKernel");
    find(set, "cuKernelSetAttribute");
    find(launch, "cuLaunchKernelEx");
    find(current, "cuCtxGetCurrent");
  }
  bool is_there() const { return load && kernel && set && launch && current; }
};

// The runtime's word for what the driver says: their numbers are the same where both have them.
inline cudaError_t error_of(CUresult result) { return static_cast<cudaError_t>(result); }

struct Loaded {
  std::mutex mutex;
  Driver driver;
  std::map<int, int> codes;  // of a device
  std::map<int, CUlibrary> libraries;  // of a code
  std::map<std::pair<int, const void*>, CUkernel> kernels;  // of a device
  std::map<std::pair<int, CUkernel>, int> bytes;  // that a device's kernel may have

  static Loaded& get() {
    static Loaded* loaded = new Loaded();
    return *loaded;
  }

  cudaError_t code_of(int device, int& code) {
    const auto known = codes.find(device);
    if (known != codes.end()) return code = known->second, cudaSuccess;
    int major = 0, minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    }
    if (error != cudaSuccess) return error;
    const int arch = 10 * major + minor;
    int best = -1;
    for (int i = 0; i < kCodeCount; ++i) {  // older ones come first, PTX before machine code
      const Code& one = kCodes[i];
      if (one.arch <= arch && (one.is_ptx || one.arch / 10 == major)) best = i;
    }
    if (best < 0) return cudaErrorNoKernelImageForDevice;
    return codes[device] = code = best, cudaSuccess;
  }

  cudaError_t find(int device, const void* stub, CUkernel& kernel) {
    const auto known = kernels.find({device, stub});
    if (known != kernels.end()) return kernel = known->second, cudaSuccess;
    int code = 0;
    if (const cudaError_t error = code_of(device, code); error != cudaSuccess) return error;
    if (libraries.find(code) == libraries.end()) {
      CUlibrary made = nullptr;
      const CUresult result =
          driver.load(&made, kCodes[code].text, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (result != CUDA_SUCCESS) return error_of(result);
      libraries[code] = made;
    }
    for (const KernelNames* one = relay_wgrad_kernels; one->stub != nullptr; ++one) {
      if (one->stub != stub) continue;
      const CUresult result = driver.kernel(&kernel, libraries[code], one->names[code]);
      if (result == CUDA_SUCCESS) kernels[{device, stub}] = kernel;
      return error_of(result);
    }
    return cudaErrorInvalidDeviceFunction;
  }

  // Shared memory beyond what every kernel may have is asked for by name.
  cudaError_t allow(int device, CUkernel kernel, size_t wanted) {
    int& allowed = bytes[{device, kernel}];
    if (wanted <= 48 << 10 || static_cast<int>(wanted) <= allowed) return cudaSuccess;
    const CUresult result = driver.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       static_cast<int>(wanted), kernel, device);
    if (result == CUDA_SUCCESS) allowed = static_cast<int>(wanted);
    return error_of(result);
  }
};

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;  // the launch does
}

inline cudaError_t launch_stub(const cudaLaunchConfig_t& c, const void* stub, void** values) {
  Loaded& loaded = Loaded::get();
  if (!loaded.driver.is_there()) return cudaErrorInsufficientDriver;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  CUcontext context = nullptr;
  if (error == cudaSuccess) error = error_of(loaded.driver.current(&context));
  if (error == cudaSuccess && context == nullptr) error = cudaSetDevice(device);  // a new thread
  if (error != cudaSuccess) return error;
  CUkernel kernel = nullptr;
  {
    std::lock_guard<std::mutex> lock(loaded.mutex);
    error = loaded.find(device, stub, kernel);
    if (error == cudaSuccess) error = loaded.allow(device, kernel, c.dynamicSmemBytes);
  }
  if (error != cudaSuccess) return error;
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = c.gridDim.x, config.gridDimY = c.gridDim.y, config.gridDimZ = c.gridDim.z;
  config.blockDimX = c.blockDim.x, config.blockDimY = c.blockDim.y, config.blockDimZ = c.blockDim.z;
  config.sharedMemBytes = static_cast<unsigned>(c.dynamicSmemBytes);
  config.hStream = c.stream;
  for (unsigned i = 0; i < c.numAttrs; ++i) {  // all that these kernels ask for
    if (c.attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization) return cudaErrorNotSupported;
    config.attrs = &early;
    config.numAttrs = 1;
  }
  return error_of(
      loaded.driver.launch(&config, reinterpret_cast<CUfunction>(kernel), values, nullptr));
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  std::tuple<std::decay_t<Parameters>...> values{static_cast<Parameters>(arguments)...};
  return std::apply(
      [&](auto&... each) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&each))...};
        return launch_stub(*config, reinterpret_cast<const void*>(kernel), pointers);
      },
      values);
}

}  // namespace
