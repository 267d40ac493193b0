// ---- calls of weights' gradients of one pixel -------------------------------------------------------

namespace {

// What is known of a call when its code is generated.
struct PointWeights {
  const char* words;
  RelayWgradPointWeightsKernel* kernel;
  const char* name;  // the kernel's
  Element element;
  std::vector<std::vector<int64_t>> sizes;  // of each weight: rows, filters, channels, if biased
};

inline void expect(const PointWeights& row, const char* name, const TensorView& t, Element element,
                   int64_t count, const TensorView& like) {
  expect_dtype(row.words, name, t, element);
  expect_on_device(row.words, name, t, like);
  expect_count(row.words, name, t, count);
}

__attribute__((noinline)) int call(const PointWeights& row, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t weights = row.sizes.size();
  size_t biases = 0;
  for (const std::vector<int64_t>& sizes : row.sizes) biases += sizes[3] != 0;
  const size_t expected = 3 * weights + biases;
  const std::vector<TensorView> views = views_of(row.words, args, count, expected);
  std::vector<RelayWgradPointWeight> table;
  size_t bias = 3 * weights;
  for (size_t i = 0; i < weights; ++i) {
    const std::vector<int64_t>& sizes = row.sizes[i];
    const int64_t n = sizes[0], k = sizes[1], c = sizes[2];
    const TensorView &dy = views[i], &x = views[weights + i], &dw = views[2 * weights + i];
    expect(row, "dy", dy, row.element, n * k, views[0]);
    expect(row, "x", x, row.element, n * c, views[0]);
    expect(row, "dw", dw, row.element, k * c, views[0]);
    const TensorView* const db = sizes[3] != 0 ? &views[bias++] : nullptr;
    if (db != nullptr) expect(row, "db", *db, Element::kFloat, k, views[0]);
    table.push_back({pointer_of(&dy), pointer_of(&x), pointer_of(&dw),
                     reinterpret_cast<float*>(pointer_of(db)), n, k, c});
  }
  launch(row, RelayWgradPointWeightsCall{table.data(), static_cast<int64_t>(weights)}, views[0]);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
