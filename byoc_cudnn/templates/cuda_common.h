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

// A device's property, asked for once.
inline int attribute_of(int device, cudaDeviceAttr which) {
  static std::mutex* mutex = new std::mutex();
  static auto* known = new std::map<std::pair<int, int>, int>();
  std::lock_guard<std::mutex> lock(*mutex);
  const auto [found, is_new] = known->try_emplace({device, static_cast<int>(which)}, 0);
  if (is_new) {
    const cudaError_t status = cudaDeviceGetAttribute(&found->second, which, device);
    if (status != cudaSuccess) known->erase(found);
    check(status, "asking for a device's property");
  }
  return found->second;
}

// Of what a kernel's object returns: 0, or a cudaError_t, negated.
inline void launched(int status, const char* kernel) {
  if (status < 0) check(static_cast<cudaError_t>(-status), std::string("launching ") + kernel);
}

// One stream's scratch memory, as large as the largest call so far has asked for.
struct Workspace {
  std::mutex enqueuing;  // two calls' kernels must not mingle on one stream: they share the block
  void* block = nullptr;
  int64_t size = 0;

  void* at_least(int64_t wanted) {
    if (wanted > size) {
      // No captured graph has this memory, and freeing it waits for whom it serves.
      release();
      void* made = nullptr;
      Relaxed relaxed;
      check(cudaMalloc(&made, static_cast<size_t>(wanted)),
            "allocating a workspace of " + std::to_string(wanted) + " bytes");
      block = made;
      size = wanted;
    }
    return block;
  }

  void release() {
    Relaxed relaxed;
    if (block != nullptr) cudaFree(block);
    block = nullptr;
    size = 0;
  }
};

// All streams'.  They live until the process ends: at exit the driver may be gone first.
struct Workspaces {
  std::mutex mutex;
  std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Workspace>> all;  // by device and stream

  static Workspaces& get() {
    static Workspaces* workspaces = new Workspaces();
    return *workspaces;
  }
};

inline Workspace& workspace_of(int device, cudaStream_t stream) {
  Workspaces& known = Workspaces::get();
  std::lock_guard<std::mutex> lock(known.mutex);
  std::unique_ptr<Workspace>& found = known.all[{device, stream}];
  if (!found) found = std::make_unique<Workspace>();
  return *found;
}

// Gives back what streams keep between calls; the next call takes it again.
inline void release_workspaces() {
  Workspaces& known = Workspaces::get();
  std::lock_guard<std::mutex> lock(known.mutex);
  for (const auto& [where, space] : known.all) {
    std::lock_guard<std::mutex> enqueuing(space->enqueuing);
    if (space->block == nullptr) continue;
    OnDevice on(where.first);
    space->release();
  }
}

inline bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is captured");
  return capture != cudaStreamCaptureStatusNone;
}

// `enqueue(block)` gives the stream a call's kernels, with scratch memory that is theirs alone until
// they are done; null for no bytes.  `own`: instead of the stream's, which stays as it is.
template <typename Enqueue>
void with_workspace(int device, cudaStream_t stream, int64_t bytes, bool captured, Enqueue enqueue,
                    Workspace* own = nullptr) {
  if (bytes == 0) {
    enqueue(nullptr);
    return;
  }
  if (captured) {
    // The graph owns its memory: it may be replayed beside anything else on any stream.
    void* block = nullptr;
    check(cudaMallocAsync(&block, static_cast<size_t>(bytes), stream),
          "allocating a workspace in a captured graph");
    enqueue(block);
    check(cudaFreeAsync(block, stream), "freeing a workspace in a captured graph");
    return;
  }
  Workspace& space = own != nullptr ? *own : workspace_of(device, stream);
  std::lock_guard<std::mutex> lock(space.enqueuing);
  void* block = space.at_least(bytes);
  if (poisoning()) {
    check(cudaMemsetAsync(block, 0xff, static_cast<size_t>(bytes), stream), "poisoning the workspace");
  }
  enqueue(block);
}

// What has been called, by which kernels: for `plans()`, and for who debugs.  Texts are constants.
class Called {
 public:
  static Called& get() {
    static Called* called = new Called();
    return *called;
  }

  // slices: of a sum, 0 where it is not cut.
  void note(const char* words, const char* kernel, int64_t bytes = 0, int slices = 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, is_new] = all_.try_emplace({words, kernel, slices}, bytes);
    found->second = bytes;
    if (is_new && debug_level() >= 4) {
      std::fprintf(stderr, "relay-wgrad: %s -> %s, workspace %lld\n", words,
                   text(kernel, slices).c_str(), static_cast<long long>(bytes));
    }
  }

  // A line for each: words, kernel, bytes of workspace, and 0 for a time that is not known.
  std::string lines() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::set<std::string> found;  // equal texts may have several addresses
    std::string out;
    for (const auto& [key, bytes] : all_) {
      const auto& [words, kernel, slices] = key;
      const std::string line = std::string(words) + "\t" + text(kernel, slices) + "\t" +
                               std::to_string(bytes) + "\t0\n";
      if (found.insert(line).second) out += line;
    }
    return out;
  }

 private:
  static std::string text(const char* kernel, int slices) {
    return slices == 0 ? kernel : std::string(kernel) + " slices=" + std::to_string(slices);
  }

  std::mutex mutex_;
  std::map<std::tuple<const char*, const char*, int>, int64_t> all_;
};

}  // namespace
