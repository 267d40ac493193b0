// ---- calls of casts and transpositions --------------------------------------------------------

namespace {

// What is known of a call when its code is generated.
struct CastTransposes {
  const char* words;
  RelayWgradCastTransposesKernel* kernel;
  const char* name;  // the kernel's
  Element source, result;
  bool scaled;
  std::vector<std::vector<int64_t>> sizes;  // of each tensor blocks, rows, columns, then their fills
};

__attribute__((noinline)) int call(const CastTransposes& row, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t tensors = row.sizes.size();
  const size_t expected = 2 * tensors + row.scaled;
  const std::vector<TensorView> views = views_of(row.words, args, count, expected);
  std::vector<RelayWgradCastTranspose> table;
  for (size_t i = 0; i < tensors; ++i) {
    const TensorView &source = views[i], &result = views[tensors + row.scaled + i];
    const std::vector<int64_t>& n = row.sizes[i];
    const RelayWgradCastTranspose item{
        pointer_of(&source), pointer_of(&result),
        {n[0], n[1], n[2]}, {{n[3], n[4]}, {n[5], n[6]}, {n[7], n[8]}}};
    expect_dtype(row.words, "a source", source, row.source);
    expect_dtype(row.words, "a result", result, row.result);
    for (const TensorView* tensor : {&source, &result}) {
      expect_on_device(row.words, "a tensor", *tensor, views[0]);
    }
    expect_count(row.words, "a source", source, n[0] * n[1] * n[2]);
    expect_count(row.words, "a result", result, item.count());
    table.push_back(item);
  }
  const float* scale = nullptr;
  if (row.scaled) {
    expect_dtype(row.words, "the scale", views[tensors], Element::kFloat);
    expect_on_device(row.words, "the scale", views[tensors], views[0]);
    expect_count(row.words, "the scale", views[tensors], 1);
    scale = reinterpret_cast<const float*>(pointer_of(&views[tensors]));
  }
  const RelayWgradCastTransposesCall z{table.data(), static_cast<int64_t>(tensors), scale};
  launch(row, z, views[0]);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
