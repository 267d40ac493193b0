// ---- calls of standardized weights ----------------------------------------------------------------

namespace {

struct Filters {
  int64_t filters, channels, taps;
  double factor;
  bool gained;
};

// What is known of a call when its code is generated.
struct Standardized {
  const char* words;
  RelayWgradStandardizedKernel* kernel;
  const char* name;  // the kernel's
  Element element;   // of what is made
  bool backward;
  double epsilon;
  std::vector<Filters> weights;
};

// The tensors of a call, one after another.
class Given {
 public:
  Given(const Standardized& row, const std::vector<TensorView>& views) : row_(row), views_(views) {}

  template <typename T>
  T* take(const char* name, Element element, int64_t count) {
    const TensorView& t = views_[at_++];
    expect_dtype(row_.words, name, t, element);
    expect_on_device(row_.words, name, t, views_[0]);
    expect_count(row_.words, name, t, count);
    return reinterpret_cast<T*>(pointer_of(&t));
  }

 private:
  const Standardized& row_;
  const std::vector<TensorView>& views_;
  size_t at_ = 0;
};

__attribute__((noinline)) int call(const Standardized& row, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t weights = row.weights.size();
  size_t gains = 0;
  for (const Filters& one : row.weights) gains += one.gained;
  const size_t expected = row.backward ? 4 * weights + 2 * gains : 3 * weights + gains;
  const std::vector<TensorView> views = views_of(row.words, args, count, expected);
  std::vector<RelayWgradStandardizedWeight> table(weights);
  Given given(row, views);
  auto each = [&](auto take) {
    for (size_t i = 0; i < weights; ++i) take(table[i], row.weights[i]);
  };
  auto elements = [](const Filters& one) { return one.filters * one.channels * one.taps; };
  auto made = [&](auto& to, const Filters& one) {
    to.made = given.take<void>(row.backward ? "a gradient" : "a result", row.element, elements(one));
  };
  auto statistics = [&](auto& to, const Filters& one) {
    to.statistics = given.take<float>("statistics", Element::kFloat, 2 * one.filters);
  };
  if (row.backward) each(made);
  each([&](auto& to, const Filters& one) {
    to.weight = given.take<float>("a weight", Element::kFloat, elements(one));
    to.filters = one.filters, to.channels = one.channels, to.taps = one.taps;
    to.factor = static_cast<float>(one.factor);
  });
  each([&](auto& to, const Filters& one) {
    if (one.gained) to.gain = given.take<float>("a gain", Element::kFloat, one.filters);
  });
  if (!row.backward) each(made);
  each(statistics);
  if (row.backward) {
    each([&](auto& to, const Filters& one) {
      to.dweight = given.take<float>("a weight's gradient", Element::kFloat, elements(one));
    });
    each([&](auto& to, const Filters& one) {
      if (one.gained) to.dgain = given.take<float>("a gain's gradient", Element::kFloat, one.filters);
    });
  }
  const RelayWgradStandardizedCall z{table.data(), static_cast<int64_t>(weights),
                                     static_cast<float>(row.epsilon)};
  launch(row, z, views[0]);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
