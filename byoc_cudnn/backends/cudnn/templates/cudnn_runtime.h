// ---- execution ----------------------------------------------------------------------------------------
//
// cuDNN's handles and plans are not safe to share between threads, so both are lent for one call at a
// time.  Everything below State lives until the process ends: at exit the driver may be gone first.

namespace {

struct Worker {
  cudnnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  bool fresh = true;

  void use(cudaStream_t wanted) {
    if (!fresh && wanted == stream) return;
    check(cudnnSetStream(handle, wanted), "cudnnSetStream");
    stream = wanted;
    fresh = false;
  }
};

// Which suggestions are worth timing.  A list begins with what cuDNN expects to be fast and ends with
// what takes seconds where the best takes milliseconds: of each so many are tried (PyTorch tries ten
// of the first), and no more once several in a row were far behind the fastest.  Engines of last
// resort can take thousands of times as long: only if no other works.
class Search {
 public:
  bool wants(int list) const {
    if (list == kLastResort) return !found();
    return tried_[list] < kMost[list] && behind_[list] < kMostBehind;
  }

  // Whether a candidate is to be timed after a first run, which has the kernel's loading in it.
  bool promising(double first_ms) const {
    return !found() || first_ms < kHopeless * best_ + kLoading;
  }

  // How long a candidate took, infinite if it was not timed; true if it is the fastest.
  bool ran(int list, double ms) {
    ++tried_[list];
    behind_[list] = found() && ms > kFarBehind * best_ ? behind_[list] + 1 : 0;
    if (!(ms < best_)) return false;
    best_ = ms;
    return true;
  }

  bool found() const { return best_ < INFINITY; }
  double best() const { return best_; }

 private:
  static constexpr int kMost[kLastResort] = {16, 8};
  static constexpr int kMostBehind = 4;
  static constexpr double kFarBehind = 2.0, kHopeless = 20.0;
  static constexpr double kLoading = 200.0;  // milliseconds
  int tried_[kLastResort + 1] = {}, behind_[kLastResort + 1] = {};
  double best_ = INFINITY;
};

// Milliseconds of a stream's work, by the device's clock.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }

  void start() { check(cudaEventRecord(start_, stream_), "cudaEventRecord"); }

  float stop() {
    float ms = 0;
    check(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(stop_), "running a candidate");
    check(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

class Entry;

struct State {
  std::mutex mutex;
  std::map<int, std::vector<Worker>> idle;                              // by device
  std::map<std::pair<const Conv*, int>, std::vector<std::unique_ptr<Entry>>> entries;
  std::unique_ptr<Record> record;  // read when the first problem is timed

  static State& get() {
    static State* state = new State();
    return *state;
  }

  Worker take(int device) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      std::vector<Worker>& free = idle[device];
      if (!free.empty()) {
        Worker worker = free.back();
        free.pop_back();
        return worker;
      }
    }
    Worker worker;
    Relaxed relaxed;
    check(cudnnCreate(&worker.handle), "cudnnCreate");
    return worker;
  }

  void give(int device, const Worker& worker) {
    std::lock_guard<std::mutex> lock(mutex);
    idle[device].push_back(worker);
  }

  Record& tuned() {
    if (!record) record = std::make_unique<Record>();
    return *record;
  }
};

// A problem of known sizes on one device: the choice made for it, and plans that nobody is using.
class Entry {
 public:
  Entry(const Conv& conv, const Sizes& sizes, int device)
      : conv_(conv), sizes_(sizes), limit_(workspace_limit(conv, sizes)), device_(device) {
    if (is_scaled(conv)) {
      passes_ = std::make_unique<ScaledHalf>(conv, sizes, device);
    } else if (ScaledHalf::takes(conv, sizes, device)) {
      half_ = ScaledHalf::within(conv, sizes, device);
      scaled_ = std::make_unique<Entry>(half_, sizes, device);
    }
  }

  const Sizes& sizes() const { return sizes_; }

  void run(Worker& worker, const Pointers& p, cudaStream_t stream) {
    const bool capturing = is_captured(stream);
    std::unique_ptr<Plan> plan;
    {
      // The first caller chooses, the others wait for it.
      std::lock_guard<std::mutex> lock(mutex_);
      if (!chosen_) {
        choose(worker, p, stream, capturing);
        return;
      }
      if (!uses_scaled_ && !idle_.empty()) {
        plan = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (uses_scaled_) {
      scaled_->run(worker, p, stream);
      return;
    }
    if (plan == nullptr) {
      Relaxed relaxed;
      const Graph graph(worker.handle, conv_, sizes_);
      plan = std::make_unique<Plan>(make_plan(worker.handle, conv_, graph, choice_, limit_));
    }
    execute(worker, *plan, p, stream, capturing);
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(plan));
  }

  std::string line() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (uses_scaled_) return scaled_->line();
    std::string out = key();
    return out + "\t" + (chosen_ ? choice_.text() : "none") + "\t" + std::to_string(workspace_) +
           "\t" + std::to_string(milliseconds_);
  }

 private:
  // `own`: the workspace to use instead of the stream's, which would stay as large as the largest.
  void execute(Worker& worker, const Plan& plan, const Pointers& p, cudaStream_t stream,
               bool capturing, Workspace* own = nullptr) {
    with_workspace(device_, stream, scratch_of(plan), capturing, [&](void* block) {
      if (passes_ == nullptr) return enqueue(worker, plan, p, block);
      const Pointers inner = passes_->begin(p, block, stream);
      enqueue(worker, plan, inner, static_cast<char*>(block) + passes_->bytes());
      passes_->end(p, block, stream);
    }, own);
  }

  int64_t scratch_of(const Plan& plan) const {
    return plan.workspace + (passes_ == nullptr ? 0 : passes_->bytes());
  }

  void enqueue(Worker& worker, const Plan& plan, const Pointers& p, void* workspace) {
    static float zero = 0.0f;
    int64_t uids[6] = {kFirst, kSecond, kResult};
    void* pointers[6] = {p.first, p.second, p.result};
    int64_t count = 3;
    auto also = [&](int64_t uid, void* pointer) {
      uids[count] = uid;
      pointers[count++] = pointer;
    };
    if (conv_.epilogue & kBias) also(kBiasIn, p.bias);
    if (conv_.epilogue & (kMask | kStrictMask | kResidual)) also(kMaskIn, p.mask);
    if (conv_.epilogue & (kMask | kStrictMask)) also(kZero, &zero);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the variant pack");
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers)
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
        .finalize();
    check(cudnnBackendExecute(worker.handle, plan.descriptor.get(), pack.get()),
          "cudnnBackendExecute");
  }

  // Finds what works, runs it, and keeps it: by times, where they are asked for and can be taken.
  void choose(Worker& worker, const Pointers& p, cudaStream_t stream, bool capturing) {
    const bool compares = (conv_.options & kBenchmark) && !capturing && !ScaledHalf::always();
    if (scaled_ == nullptr || !(compares || ScaledHalf::expected(conv_, sizes_))) {
      choose_plan(worker, p, stream, capturing);
      return;
    }
    if (compares) choose_plan(worker, p, stream, capturing);
    try {
      scaled_->run(worker, p, stream);
      uses_scaled_ = !compares || scaled_->milliseconds_ < milliseconds_;
    } catch (const Failure& failure) {
      if (debug_level() >= 4) std::fprintf(stderr, "relay-wgrad: %s\n", failure.what.c_str());
    }
    if (uses_scaled_) {
      idle_.clear();
      chosen_ = true;
    } else if (compares) {
      execute(worker, *idle_.back(), p, stream, capturing);  // the result must be the winner's
    } else {
      choose_plan(worker, p, stream, capturing);
    }
  }

  void choose_plan(Worker& worker, const Pointers& p, cudaStream_t stream, bool capturing) {
    std::unique_ptr<Relaxed> relaxed;
    if (capturing) relaxed = std::make_unique<Relaxed>();
    const Graph graph(worker.handle, conv_, sizes_);
    const bool timing = (conv_.options & kBenchmark) && !capturing;
    std::vector<std::string> failures;
    auto attempt = [&](const Choice& choice, Stopwatch* watch = nullptr,
                       Workspace* space = nullptr) -> std::unique_ptr<Plan> {
      try {
        auto plan = std::make_unique<Plan>(make_plan(worker.handle, conv_, graph, choice, limit_));
        if (watch != nullptr) watch->start();
        execute(worker, *plan, p, stream, capturing, space);
        return plan;
      } catch (const Failure& failure) {
        failures.push_back("engine " + choice.text() + ": " + failure.what);
        return nullptr;
      }
    };
    std::unique_ptr<Plan> plan;
    Choice choice;
    if (timing) {
      std::lock_guard<std::mutex> lock(State::get().mutex);
      if (!State::get().tuned().find(key(), &choice, &milliseconds_)) choice = Choice();
    }
    if (choice.engine >= 0) plan = attempt(choice);
    if (plan == nullptr) {
      std::vector<Choice> all = suggestions(graph, timing);
      if (timing) {
        plan = fastest(worker, p, stream, all, attempt, &choice);
      } else {
        for (size_t i = 0; i < all.size() && plan == nullptr; ++i) {
          choice = all[i];
          plan = attempt(choice);
        }
      }
      if (plan == nullptr) throw Failure{complaint(all.size(), failures)};
      if (timing) {
        std::lock_guard<std::mutex> lock(State::get().mutex);
        State::get().tuned().add(key(), choice, milliseconds_);
      }
    }
    choice_ = choice;
    workspace_ = scratch_of(*plan);
    idle_.push_back(std::move(plan));
    chosen_ = true;
    if (debug_level() >= 4) {
      std::fprintf(stderr, "relay-wgrad: %s -> engine %s, workspace %lld\n", key().c_str(),
                   choice_.text().c_str(), static_cast<long long>(workspace_));
    }
  }

  // The fastest by the device's clock.  Every candidate has run once before it is timed.
  template <typename Attempt>
  std::unique_ptr<Plan> fastest(Worker& worker, const Pointers& p, cudaStream_t stream,
                                const std::vector<Choice>& all, Attempt attempt, Choice* best) {
    std::unique_ptr<Plan> winner;
    Search search;
    Stopwatch watch(stream);
    Workspace space;
    for (const Choice& choice : all) {
      if (!search.wants(choice.list)) continue;
      std::vector<double> times;
      std::unique_ptr<Plan> plan = attempt(choice, &watch, &space);
      if (plan == nullptr) continue;
      try {
        const bool timed = search.promising(watch.stop());
        for (int i = 0; timed && i < 7; ++i) {
          watch.start();
          execute(worker, *plan, p, stream, false, &space);
          times.push_back(watch.stop());
          if (*std::min_element(times.begin(), times.end()) > 1.5 * search.best()) break;
        }
      } catch (const Failure&) {
        continue;
      }
      std::sort(times.begin(), times.end());
      const double middle = times.empty() ? INFINITY : times[times.size() / 2];
      if (debug_level() >= 5) {
        std::fprintf(stderr, "relay-wgrad: engine %s: %.4f ms\n", choice.text().c_str(), middle);
      }
      if (search.ran(choice.list, middle)) {
        winner = std::move(plan);
        *best = choice;
        milliseconds_ = middle;
      }
    }
    space.release();
    // The result must be the winner's.
    if (winner != nullptr) execute(worker, *winner, p, stream, false);
    return winner;
  }

  // Everything that the choice depends on.
  std::string key() const {
    cudaDeviceProp prop;
    std::ostringstream out;
    check(cudaGetDeviceProperties(&prop, device_), "cudaGetDeviceProperties");
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    out << "cudnn=" << cudnnGetVersion() << " cuda=" << runtime << " sm=" << prop.major << prop.minor
        << "x" << prop.multiProcessorCount << " gpu=";
    for (const char* c = prop.name; *c != 0; ++c) out << (*c <= ' ' || *c > '~' ? '_' : *c);
    out << " | " << words();
    return out.str();
  }

  std::string words() const {
    static const char* const kKinds[3] = {"fprop", "dgrad", "wgrad"};
    const Sizes& z = sizes_;
    std::ostringstream out;
    const int dims = conv_.dims;
    auto sizes = [&out, dims](const char* letters, const int64_t* values) {
      for (int i = 0; i < dims; ++i) out << " " << letters[kMostDims - dims + i] << "=" << values[i];
    };
    auto listed = [&out](const char* name, const int64_t* values, int count) {
      out << name;
      for (int i = 0; i < count; ++i) out << (i == 0 ? "" : ",") << values[i];
    };
    out << kKinds[static_cast<int>(conv_.kind)] << " n=" << z.n << " c=" << z.c;
    sizes("dhw", z.image);
    out << " k=" << z.k;
    sizes("trs", z.taps);
    listed(" stride=", conv_.stride, dims);
    listed(" pad=", conv_.padding, 2 * dims);
    listed(" dil=", conv_.dilation, dims);
    const char* hw = dims == 3 ? "DHW" : "HW";
    out << " groups=" << conv_.groups << " layout="
        << (conv_.channels_last ? std::string("N") + hw + "C/O" + hw + "I/N" + hw + "C"
                                : std::string("NC") + hw + "/OI" + hw + "/NC" + hw)
        << " dtype=";
    if (passes_ != nullptr) {
      out << "f32/f32/f32 as scaled f16";
    } else {
      out << short_name(conv_.data) << "/" << short_name(conv_.weight) << "/"
          << short_name(conv_.grad);
    }
    out << " epilogue=" << conv_.epilogue << " options=" << conv_.options << " limit=" << limit_
        << " align=" << z.alignment;
    return out.str();
  }

  static const char* short_name(cudnnDataType_t dtype) {
    return dtype == CUDNN_DATA_HALF ? "f16" : dtype == CUDNN_DATA_BFLOAT16 ? "bf16" : "f32";
  }

  std::string complaint(size_t tried, const std::vector<std::string>& failures) const {
    std::string out = "cuDNN has no plan for " + words() + " (generated for " + conv_.problem +
                      "); " + std::to_string(tried) + " suggestions";
    for (size_t i = 0; i < failures.size() && i < 8; ++i) out += "\n  " + failures[i];
    if (conv_.epilogue != 0) out += "\n  partition(…, fuse=False) offloads convolutions alone";
    if (failures.size() > 8) out += "\n  and " + std::to_string(failures.size() - 8) + " more";
    return out;
  }

  const Conv& conv_;
  const Sizes sizes_;
  const int64_t limit_;  // of the workspace, bytes
  const int device_;
  std::unique_ptr<ScaledHalf> passes_;  // around the plan, which is of float16
  Conv half_ = {};
  std::unique_ptr<Entry> scaled_;  // the same problem by `half_`, if it may be
  std::mutex mutex_;
  bool uses_scaled_ = false;
  bool chosen_ = false;
  Choice choice_;
  int64_t workspace_ = 0;
  double milliseconds_ = 0;
  std::vector<std::unique_ptr<Plan>> idle_;
};

}  // namespace
