// ---- calls of attention ----------------------------------------------------------------------------

namespace {

// Where a tensor's matrices are, in elements.
struct Placed {
  int64_t first, step[kOuter], row;
};

// What is known of a call when its code is generated.
struct Attention {
  const char* words;
  RelayWgradAttentionKernel* kernel;
  const char* name;  // the kernel's
  Element element;
  bool backward, wide;
  int64_t size[kOuter];  // the first is 0 where the logarithms say it
  int64_t rows, columns, width;
  double scale;
  std::vector<Placed> places;   // of q, k, v, out, and backward of dout, dq, dk, dv
  std::vector<size_t> results;  // of out, or of dq, dk and dv: in which result each is
  std::vector<Added> added;

  int64_t matrices() const { return size[0] * size[1] * size[2]; }
};

constexpr const char* kNames[] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};
constexpr bool kOfColumns[] = {false, true, true, false, false, false, true, true};

// Whether accesses of 16 bytes fit.
inline bool is_whole(const Placed& at, const void* pointer) {
  bool fits = at.row % 8 == 0 && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  for (const int64_t step : at.step) fits = fits && step % 8 == 0;
  return fits;
}

inline void expect_numbers(const char* words, const char* name, const TensorView& t, int64_t count,
                           const TensorView& like) {
  expect_dtype(words, name, t, Element::kFloat);
  expect_on_device(words, name, t, like);
  expect_count(words, name, t, count);
}

// q, k, v, added -> out, logarithms; or q, k, v, out, logarithms, dout, added -> results, [ds,] inner
__attribute__((noinline)) int call(const Attention& given, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  Attention row = given;
  const size_t made = *std::max_element(row.results.begin(), row.results.end()) + 1;
  const size_t own = row.backward ? 6 : 3, read = own + row.added.size();
  const std::vector<TensorView> views = views_of(row.words, args, count, read + made + row.wide + 1);
  const TensorView &last = views.back(), &logs = row.backward ? views[4] : last;
  if (row.size[0] == 0) row.size[0] = logs.numel() / (row.size[1] * row.size[2] * row.rows);
  const int64_t all = row.matrices() * row.rows;
  expect_numbers(row.words, "the logarithms", logs, all, views[0]);
  expect_numbers(row.words, "inner", last, all, views[0]);
  RelayWgradAttentionCall z{};
  z.whole = true;
  z.rows = row.rows;
  z.columns = row.columns;
  z.scale = static_cast<float>(row.scale);
  z.logs = reinterpret_cast<float*>(pointer_of(&logs));
  z.inner = reinterpret_cast<float*>(pointer_of(&last));
  if (row.wide) {
    expect_numbers(row.words, "the scores' gradient", views[read + made], all * row.columns, views[0]);
    z.wide = reinterpret_cast<float*>(pointer_of(&views[read + made]));
  }
  z.masks = static_cast<int>(row.added.size());
  put_added(row.words, row.added, &views[own], all, z.added, views[0]);
  std::copy(row.size, row.size + kOuter, z.size);
  RelayWgradAttentionPlace* const to[] = {&z.q, &z.k, &z.v, &z.out, &z.dout, &z.dq, &z.dk, &z.dv};
  std::vector<int64_t> written(made, 0);
  const size_t first_written = row.places.size() - row.results.size();
  for (size_t i = 0; i < row.places.size(); ++i) {
    const Placed& at = row.places[i];
    const int64_t lines = kOfColumns[i] ? row.columns : row.rows;
    const bool is_read = i < first_written;
    const size_t part = is_read ? 0 : row.results[i - first_written];
    const TensorView& t = views[is_read ? (i < 4 ? i : 5) : read + part];
    expect_dtype(row.words, kNames[i], t, row.element);
    expect_on_device(row.words, kNames[i], t, views[0]);
    int64_t extent = at.first + (lines - 1) * at.row + row.width;
    for (int k = 0; k < kOuter; ++k) extent += (row.size[k] - 1) * at.step[k];
    if (row.matrices() > 0 && t.numel() < extent) {
      TVM_FFI_THROW(ValueError) << row.words << ": " << kNames[i] << " has " << t.numel()
                                << " elements, expected " << extent;
    }
    if (!is_read) written[part] += row.matrices() * lines * row.width;
    to[i]->at = pointer_of(&t) + 2 * at.first;
    to[i]->row = at.row;
    std::copy(at.step, at.step + kOuter, to[i]->step);
    z.whole = z.whole && is_whole(at, to[i]->at);
  }
  for (size_t part = 0; part < made; ++part) {
    expect_count(row.words, "a result", views[read + part], written[part]);
  }
  if (row.matrices() > 0) launch(row, z, views[0]);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
