// Times a function of tensors on a device, for `byoc_cudnn.tuning.tune`.
//
// The stream waits on the host while the calls are enqueued, so that launching is no part of the time.

#include <cuda_runtime_api.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  TVM_FFI_THROW(RuntimeError) << "timing: " << doing << ": " << cudaGetErrorString(status);
}

void wait(void* gate) {
  while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::yield();
}

// Milliseconds of one of `calls` calls; the sets of arguments take turns.
double milliseconds(const tvm::ffi::Function& function, const Array<Array<Any>>& sets, int64_t calls,
            int64_t device) {
  if (sets.empty() || calls < 1 || calls > 50) {  // a full queue of launches would wait for ever
    TVM_FFI_THROW(ValueError) << "timing: " << sets.size() << " sets of arguments, " << calls
                              << " calls";
  }
  std::vector<std::vector<AnyView>> args;
  for (const Array<Any>& one : sets) args.emplace_back(one.begin(), one.end());
  check(cudaSetDevice(static_cast<int>(device)), "choosing the device");
  cudaStream_t stream =
      static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, static_cast<int32_t>(device)));
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "creating an event");
  check(cudaEventCreate(&end), "creating an event");
  std::atomic<bool> open{false};
  struct Opens {  // also where a call throws: the stream must not wait for ever
    std::atomic<bool>& gate;
    ~Opens() { gate.store(true); }
  };
  {
    Opens opens{open};
    check(cudaLaunchHostFunc(stream, wait, &open), "closing the gate");
    check(cudaEventRecord(begin, stream), "recording an event");
    tvm::ffi::Any result;
    for (int64_t i = 0; i < calls; ++i) {
      const std::vector<AnyView>& one = args[static_cast<size_t>(i) % args.size()];
      function.CallPacked(one.data(), static_cast<int32_t>(one.size()), &result);
    }
    check(cudaEventRecord(end, stream), "recording an event");
  }
  check(cudaEventSynchronize(end), "waiting for the calls");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "reading the time");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms / static_cast<double>(calls);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(relay_wgrad_time, milliseconds);
