// ---- calls of batched products -------------------------------------------------------------------------

namespace {

// Where a tensor's matrices are, in elements.
struct Matrices {
  int64_t lead, step, first;
  bool turned;

  // How many elements the tensor has up to their last.
  int64_t extent(int64_t count, int64_t rows, int64_t columns) const {
    const int64_t lines = turned ? columns : rows, within = turned ? rows : columns;
    return first + (count - 1) * step + (lines - 1) * lead + within;
  }
};

// What is known of a call when its code is generated.
struct BatchedProducts {
  const char* words;
  Element element, result;
  bool tf32;
  int64_t b, m, n, k;  // b is 0 where c says it
  Matrices places[3];  // of a, b and c
  int64_t filled;      // behind each of c's lines

  // Elements of one matrix of c, with what is nobody's.
  int64_t each() const { return m * n + filled * (places[2].turned ? n : m); }
};

const Cublas& cublas() {
  static const Cublas* const loaded = [] {
    const std::string name = "libcublas.so." + std::to_string(CUDART_VERSION / 1000);
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw Failure{"opening cuBLAS: " + std::string(dlerror()) +
                    "\nit comes with cuDNN's package (nvidia-cublas) and with CUDA"};
    }
    auto* made = new Cublas();
    auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) throw Failure{name + " has no " + symbol};
    };
    find(made->create, "cublasCreate_v2");
    find(made->set_stream, "cublasSetStream_v2");
    find(made->set_workspace, "cublasSetWorkspace_v2");
    find(made->set_math_mode, "cublasSetMathMode");
    find(made->set_pointer_mode, "cublasSetPointerMode_v2");
    find(made->status, "cublasGetStatusString");
    find(made->gemm, "cublasGemmStridedBatchedEx");
    return made;
  }();
  return *loaded;
}

inline void check_cublas(int status, const char* doing) {
  if (status != 0) throw Failure{std::string(doing) + ": " + cublas().status(status)};
}

// A handle is lent for one call: it is not safe to share between threads.  All live until the process
// ends: at exit the driver may be gone first.
class Handles {
 public:
  static Handles& get() {
    static Handles* handles = new Handles();
    return *handles;
  }

  CublasHandle take(int device) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::vector<CublasHandle>& free = idle_[device];
      if (!free.empty()) {
        const CublasHandle handle = free.back();
        free.pop_back();
        return handle;
      }
    }
    CublasHandle handle = nullptr;
    Relaxed relaxed;
    check_cublas(cublas().create(&handle), "cublasCreate");
    check_cublas(cublas().set_pointer_mode(handle, kHostPointers), "cublasSetPointerMode");
    check_cublas(cublas().set_math_mode(handle, kNoReducedPrecisionReduction), "cublasSetMathMode");
    return handle;
  }

  void give(int device, CublasHandle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_[device].push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<CublasHandle>> idle_;  // by device
};

class Lent {
 public:
  explicit Lent(int device) : device_(device), handle(Handles::get().take(device)) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { Handles::get().give(device_, handle); }

 private:
  const int device_;

 public:
  const CublasHandle handle;
};

inline cudaDataType type_of(Element element) {
  static constexpr cudaDataType kTypes[] = {CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F};
  return kTypes[static_cast<int>(element)];
}

inline int64_t bytes_of(Element element) {
  return element == Element::kDouble ? 8 : element == Element::kFloat ? 4 : 2;
}

// Scratch memory: much where there are few results of many terms each, so that sums are cut; else
// as much as no product fails without.
inline int64_t scratch_of(const BatchedProducts& row, int64_t count) {
  constexpr int64_t kTile = 128, kTiles = 128, kTerms = 512;
  const int64_t tiles = count * ((row.m + kTile - 1) / kTile) * ((row.n + kTile - 1) / kTile);
  return tiles < kTiles && row.k >= kTerms ? int64_t{32} << 20 : int64_t{64} << 10;
}

// cuBLAS has columns side by side: it is given the transpose of all, cᵀ = bᵀ aᵀ, unless c is turned.
inline void multiply(const BatchedProducts& row, CublasHandle handle, const char* a, const char* b,
                     char* c, int64_t count) {
  const Matrices &of_a = row.places[0], &of_b = row.places[1], &of_c = row.places[2];
  const bool swapped = !of_c.turned;
  const bool wide = row.element == Element::kDouble;
  const float one = 1.0f, zero = 0.0f;
  const double one64 = 1.0, zero64 = 0.0;
  const void* const alpha = wide ? static_cast<const void*>(&one64) : &one;
  const void* const beta = wide ? static_cast<const void*>(&zero64) : &zero;
  const int compute = wide ? kCompute64F : row.tf32 ? kCompute32FFastTf32 : kCompute32F;
  const Matrices &first = swapped ? of_b : of_a, &second = swapped ? of_a : of_b;
  const auto operation = [&](const Matrices& at) {
    return at.turned == swapped ? kTransposed : kPlain;
  };
  const int rows = static_cast<int>(swapped ? row.n : row.m);
  const int columns = static_cast<int>(swapped ? row.m : row.n);
  const cudaDataType type = type_of(row.element), result = type_of(row.result);
  constexpr int64_t kMost = 65535;  // of a launch: a grid's last axis
  for (int64_t at = 0; at < count; at += kMost) {
    const int64_t some = std::min(kMost, count - at);
    const char* const from_a = a + (of_a.first + at * of_a.step) * bytes_of(row.element);
    const char* const from_b = b + (of_b.first + at * of_b.step) * bytes_of(row.element);
    check_cublas(
        cublas().gemm(handle, operation(first), operation(second), rows, columns,
                      static_cast<int>(row.k), alpha, swapped ? from_b : from_a, type,
                      static_cast<int>(first.lead), first.step, swapped ? from_a : from_b, type,
                      static_cast<int>(second.lead), second.step, beta,
                      c + (of_c.first + at * of_c.step) * bytes_of(row.result), result,
                      static_cast<int>(of_c.lead), of_c.step, static_cast<int>(some), compute,
                      kDefaultAlgorithm),
        "cublasGemmStridedBatchedEx");
  }
}

inline void expect(const BatchedProducts& row, const char* name, const TensorView& t,
                   Element element, int64_t extent, const TensorView& like) {
  expect_dtype(row.words, name, t, element);
  expect_on_device(row.words, name, t, like);
  if (t.numel() < extent) {
    TVM_FFI_THROW(ValueError) << row.words << ": " << name << " has " << t.numel()
                              << " elements, expected " << extent;
  }
}

__attribute__((noinline)) int call(const BatchedProducts& row, const TVMFFIAny* args,
                                   int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const std::vector<TensorView> views = views_of(row.words, args, count, 3);
  const TensorView &a = views[0], &b = views[1], &c = views[2];
  const int64_t products = row.b != 0 ? row.b : c.numel() / row.each();
  expect_count(row.words, "c", c, products * row.each());
  if (products == 0) return 0;
  expect(row, "a", a, row.element, row.places[0].extent(products, row.m, row.k), c);
  expect(row, "b", b, row.element, row.places[1].extent(products, row.k, row.n), c);
  expect(row, "c", c, row.result, row.places[2].extent(products, row.m, row.n), c);
  const int device = c.device().device_id;
  on_stream(row.words, device, [&](cudaStream_t stream) {
    const int64_t bytes = scratch_of(row, products);
    Called::get().note(row.words, "cublasGemmStridedBatchedEx", bytes);
    const Lent lent(device);
    with_workspace(device, stream, bytes, is_captured(stream), [&](void* block) {
      // Before the workspace, which a new stream would take back.
      check_cublas(cublas().set_stream(lent.handle, stream), "cublasSetStream");
      check_cublas(cublas().set_workspace(lent.handle, block, static_cast<size_t>(bytes)),
                   "cublasSetWorkspace");
      multiply(row, lent.handle, pointer_of(&a), pointer_of(&b), pointer_of(&c), products);
    });
  });
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
