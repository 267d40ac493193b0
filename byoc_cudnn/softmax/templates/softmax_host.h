// ---- calls of softmax ------------------------------------------------------------------------------

namespace {

// What is known of a call when its code is generated.
struct Softmax {
  const char* words;
  RelayWgradSoftmaxKernel* kernel;
  const char* name;         // the kernel's
  Element source, element;  // of what is read first, and of weights
  bool backward, wide;
  int64_t columns;
  double scale;
  std::vector<Added> added;
};

// From one row to the next of a tensor that has `rows` of them, or where that is -1, however many.
inline int64_t pitch_of(const Softmax& row, const char* name, const TensorView& t, Element element,
                        const TensorView& like, int64_t& rows) {
  expect_dtype(row.words, name, t, element);
  expect_on_device(row.words, name, t, like);
  const int64_t pitch = t.ndim() > 0 ? t.size(t.ndim() - 1) : 0;
  if (pitch < row.columns) {
    TVM_FFI_THROW(ValueError) << row.words << ": rows of " << name << " have " << pitch << " elements, expected "
                              << row.columns;
  }
  if (rows < 0) rows = t.numel() / pitch;
  expect_count(row.words, name, t, rows * pitch);
  return pitch;
}

__attribute__((noinline)) int call(const Softmax& row, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t expected = row.backward ? 3 + row.wide : 2 + row.added.size();
  const std::vector<TensorView> views = views_of(row.words, args, count, expected);
  const TensorView& result = views[row.backward ? 2 : expected - 1];
  RelayWgradSoftmaxCall z{};
  z.rows = -1;
  z.columns = row.columns;
  z.scale = static_cast<float>(row.scale);
  z.source_pitch = pitch_of(row, row.backward ? "the gradient" : "the scores", views[0], row.source,
                            views[0], z.rows);
  z.result_pitch = pitch_of(row, "the result", result, row.element, views[0], z.rows);
  z.source = pointer_of(&views[0]);
  z.result = pointer_of(&result);
  if (row.backward) {
    z.weights_pitch = pitch_of(row, "the weights", views[1], row.element, views[0], z.rows);
    z.weights = pointer_of(&views[1]);
    if (row.wide) {
      expect_dtype(row.words, "the second result", views[3], Element::kFloat);
      expect_on_device(row.words, "the second result", views[3], views[0]);
      expect_count(row.words, "the second result", views[3], z.rows * z.columns);
      z.wide = reinterpret_cast<float*>(pointer_of(&views[3]));
    }
  }
  z.masks = static_cast<int>(row.added.size());
  put_added(row.words, row.added, &views[1], z.rows, z.added, views[0]);
  if (z.rows > 0) launch(row, z, views[0]);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
