// ---- calls of moves -------------------------------------------------------------------------------------

namespace {

// What is known of a call when its code is generated.
struct Moves {
  const char* words;
  RelayWgradMovesKernel* kernel;
  const char* name;  // the kernel's
  Element source, result;
  bool scaled;
  std::vector<std::vector<int64_t>> sizes;  // blocks, rows, columns of each tensor
};

inline void expect_count(const char* words, const TensorView& t, const std::vector<int64_t>& sizes) {
  if (t.numel() != sizes[0] * sizes[1] * sizes[2]) {
    TVM_FFI_THROW(ValueError) << words << ": a tensor of " << t.numel() << " elements, expected "
                              << sizes[0] << " x " << sizes[1] << " x " << sizes[2];
  }
}

__attribute__((noinline)) int call(const Moves& moves, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t tensors = moves.sizes.size();
  const size_t expected = 2 * tensors + moves.scaled;
  if (count < 0 || static_cast<size_t>(count) != expected) {
    TVM_FFI_THROW(TypeError) << moves.words << ": expected " << expected << " tensors, got " << count
                             << " arguments";
  }
  const std::vector<TensorView> views = views_of(args, count);
  std::vector<RelayWgradMove> table;
  for (size_t i = 0; i < tensors; ++i) {
    const TensorView &source = views[i], &result = views[tensors + moves.scaled + i];
    const std::vector<int64_t>& sizes = moves.sizes[i];
    expect_dtype(moves.words, "a source", source, moves.source);
    expect_dtype(moves.words, "a result", result, moves.result);
    for (const TensorView* tensor : {&source, &result}) {
      expect_on_device(moves.words, "a tensor", *tensor, views[0]);
      expect_count(moves.words, *tensor, sizes);
    }
    table.push_back({pointer_of(&source), pointer_of(&result), sizes[0], sizes[1], sizes[2]});
  }
  const float* scale = nullptr;
  if (moves.scaled) {
    expect_dtype(moves.words, "the scale", views[tensors], Element::kFloat);
    expect_on_device(moves.words, "the scale", views[tensors], views[0]);
    expect_count(moves.words, views[tensors], {1, 1, 1});
    scale = reinterpret_cast<const float*>(pointer_of(&views[tensors]));
  }
  try {
    const int device = views[0].device().device_id;
    OnDevice on(device);
    Called::get().note(moves.words, moves.name);
    const RelayWgradMovesCall z{table.data(), static_cast<int64_t>(tensors), scale};
    launched(moves.kernel(z, static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device))),
             moves.name);
  } catch (const Failure& failure) {
    TVM_FFI_THROW(RuntimeError) << failure.what << "\nproblem: " << moves.words;
  }
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
