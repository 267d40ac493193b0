// ---- what code for any library needs of CUDA's runtime ------------------------------------------------

namespace {

// A call that failed, in words.  A plan may fail and give way to another, so this is no error of the
// user's until none is left.
struct Failure {
  std::string what;
};

inline void check(cudaError_t status, const std::string& doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // this error is reported here; the next call is not to see it
  throw Failure{doing + ": " + cudaGetErrorString(status)};
}

inline int debug_level() {
  static const int level = [] {
    const char* text = std::getenv("RELAY_WGRAD_DEBUG");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return level;
}

// For tests: the workspace is filled with NaNs of every type before each use.
inline bool poisoning() {
  static const bool on = std::getenv("RELAY_WGRAD_POISON") != nullptr;
  return on;
}

// Makes a device current for a scope.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "asking for the current device");
    changed_ = before_ != device;
    if (changed_) check(cudaSetDevice(device), "choosing device " + std::to_string(device));
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

// Lets a capturing thread allocate for itself: what is allocated here is no part of the graph.
class Relaxed {
 public:
  Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// One stream's scratch memory.  Outgrown blocks stay, since a captured graph may hold their address;
// each is at least twice the one before, so all of them together are less than the last.
struct Workspace {
  std::mutex enqueuing;  // two calls' kernels must not mingle on one stream: they share the block
  void* block = nullptr;
  int64_t size = 0;

  void* at_least(int64_t wanted, int64_t limit) {
    if (wanted > size) {
      const int64_t larger = std::max(wanted, std::min(2 * size, limit));
      void* made = nullptr;
      Relaxed relaxed;
      check(cudaMalloc(&made, static_cast<size_t>(larger)),
            "allocating a workspace of " + std::to_string(larger) + " bytes");
      block = made;
      size = larger;
    }
    return block;
  }
};

}  // namespace
