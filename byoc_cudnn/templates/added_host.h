// ---- what is added to rows of scores, as tensors of a call ---------------------------------------------

namespace {

struct Added {
  Element element;
  std::vector<RelayWgradStep> steps;
  int64_t extent;
};

// Tensors from `given` on, of which each has what `rows` rows need.
inline void put_added(const char* words, const std::vector<Added>& all, const TensorView* given, int64_t rows,
                      RelayWgradAdded* to, const TensorView& like) {
  for (const Added& one : all) {
    const TensorView& t = *given++;
    expect_dtype(words, "what is added", t, one.element);
    expect_on_device(words, "what is added", t, like);
    int64_t extent = one.extent;
    for (const RelayWgradStep& step : one.steps) {
      if (step.count == 0 && rows > 0) extent += (rows - 1) / step.divisor * step.stride;
    }
    if (rows > 0 && t.numel() < extent) {
      TVM_FFI_THROW(ValueError) << words << ": what is added has " << t.numel() << " elements, expected "
                                << extent;
    }
    to->at = pointer_of(&t);
    to->kind = static_cast<int>(one.element);
    to->steps = static_cast<int>(one.steps.size());
    std::copy(one.steps.begin(), one.steps.end(), to++->step);
  }
}

}  // namespace
