// ---- calls of updates -----------------------------------------------------------------------------------

namespace {

// What is known of a call when its code is generated.
struct Updates {
  const char* words;
  RelayWgradUpdatesKernel* kernel;
  const char* name;  // the kernel's
  Element element;
  bool counts;                // and updates nothing
  int slots, scalars;         // of the state: tensors of each parameter, scalars
  RelayWgradNumbers numbers;
  std::vector<int64_t> sizes, statistics;
  std::vector<size_t> undecayed;  // places
};

inline void expect_number(const char* words, const char* name, const TensorView& t, int code,
                          int bits) {
  const DLDataType d = t.dtype();
  if (d.code != code || d.bits != bits || d.lanes != 1) {
    TVM_FFI_THROW(TypeError) << words << ": " << name << " is of another type: code " << int{d.code}
                             << ", " << int{d.bits} << " bits";
  }
}

// Reads the arguments one after another.
struct Reader {
  const Updates& row;
  const std::vector<TensorView> views;
  size_t at = 0;

  const TensorView& next(int64_t count) {
    const TensorView& t = views[at++];
    expect_on_device(row.words, "a tensor", t, views[0]);
    expect_count(row.words, "a tensor", t, count);
    return t;
  }
  char* tensor(int64_t count) {
    const TensorView& t = next(count);
    expect_dtype(row.words, "a tensor", t, row.element);
    return pointer_of(&t);
  }
  template <typename T>
  T* number(const char* name, int64_t count, int code) {
    const TensorView& t = next(count);
    expect_number(row.words, name, t, code, 8 * static_cast<int>(sizeof(T)));
    return reinterpret_cast<T*>(pointer_of(&t));
  }
};

// What is written over must not be read for another tensor.
inline void expect_apart(const char* words, const std::vector<RelayWgradUpdate>& table) {
  std::map<const void*, size_t> written;
  for (size_t i = 0; i < table.size(); ++i) {
    for (const void* p : {static_cast<const void*>(table[i].value),
                          static_cast<const void*>(table[i].first),
                          static_cast<const void*>(table[i].second)}) {
      if (p != nullptr && !written.emplace(p, i).second) {
        TVM_FFI_THROW(ValueError) << words << ": two tensors that are written over are one";
      }
    }
  }
  for (size_t i = 0; i < table.size(); ++i) {
    const auto found = written.find(table[i].gradient);
    if (found != written.end() && (found->second != i || table[i].gradient != table[i].value)) {
      TVM_FFI_THROW(ValueError) << words << ": a gradient is a tensor that is written over";
    }
  }
}

__attribute__((noinline)) int call(const Updates& row, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t tensors = row.sizes.size(), kept = row.statistics.size();
  const size_t expected =
      row.counts ? tensors + 2
                 : (2 + static_cast<size_t>(row.slots)) * tensors +
                       2 * static_cast<size_t>(row.scalars) + 2 * kept + 3;
  Reader reader{row, views_of(row.words, args, count, expected)};
  std::vector<RelayWgradUpdate> table(tensors + (row.counts ? 0 : kept));
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = {};
    table[i].statistic = i >= tensors;
    table[i].decays = true;
    table[i].count = i < tensors ? row.sizes[i] : row.statistics[i - tensors];
  }
  for (size_t place : row.undecayed) table[place].decays = false;
  RelayWgradUpdatesCall z{};
  z.numbers = row.numbers;
  auto some = [&](size_t begin, size_t end, auto place) {
    for (size_t i = begin; i < end; ++i) place(table[i]) = reader.tensor(table[i].count);
  };
  auto value = [](RelayWgradUpdate& one) -> void*& { return one.value; };
  auto gradient = [](RelayWgradUpdate& one) -> const void*& { return one.gradient; };
  some(0, tensors, value);
  if (row.counts) {
    int64_t blocks = 0;
    for (int64_t n : row.sizes) blocks += (n + kRelayWgradTile - 1) / kRelayWgradTile;
    z.partial = reader.number<int32_t>("a count of each block", blocks, kDLInt);
    z.found = reader.number<double>("a count", 1, kDLFloat);
  } else {
    some(0, tensors, gradient);
    auto first = [](RelayWgradUpdate& one) -> void*& { return one.first; };
    auto second = [](RelayWgradUpdate& one) -> void*& { return one.second; };
    if (row.slots > 0) some(0, tensors, first);
    if (row.slots > 1) some(0, tensors, second);
    z.steps = reader.number<int64_t>("the count of updates", 1, kDLInt);
    if (row.scalars > 1) z.product1 = reader.tensor(1);
    if (row.scalars > 1) z.product2 = reader.tensor(1);
    some(tensors, tensors + kept, value);
    some(tensors, tensors + kept, gradient);
    z.updates = reader.number<bool>("whether to update", 1, kDLBool);
    z.runs = reader.number<bool>("whether anything moves", 1, kDLBool);
    z.rates = reader.tensor(2);
    z.new_steps = reader.number<int64_t>("the count of updates", 1, kDLInt);
    if (row.scalars > 1) z.new_product1 = reader.tensor(1);
    if (row.scalars > 1) z.new_product2 = reader.tensor(1);
    expect_apart(row.words, table);
  }
  z.tensors = table.data();
  z.count = static_cast<int64_t>(table.size());
  launch(row, z, reader.views[0]);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
