// ---- calls of joins --------------------------------------------------------------------------------------

namespace {

struct Channels {
  size_t operand;
  int64_t first;
};

struct Part {
  int64_t width;
  std::vector<Channels> terms;
};

// What is known of a call when its code is generated; the number of rows comes with the tensors.
struct Joins {
  const char* words;
  RelayWgradJoinsKernel* kernel;
  const char* name;  // the kernel's
  Element element;
  std::vector<int64_t> channels;           // of operands
  std::vector<std::vector<Part>> results;
};

// A tensor of so many channels, of rows as the others have.
inline int64_t rows_of(const Joins& row, const TensorView& t, int64_t channels, const TensorView& like) {
  expect_dtype(row.words, "a tensor", t, row.element);
  expect_on_device(row.words, "a tensor", t, like);
  bool same = t.ndim() == like.ndim() && t.ndim() > 0 && t.size(t.ndim() - 1) == channels;
  for (int i = 0; same && i + 1 < t.ndim(); ++i) same = t.size(i) == like.size(i);
  if (!same) {
    TVM_FFI_THROW(ValueError) << row.words << ": a tensor must have " << channels
                              << " channels and the other axes of the first";
  }
  return channels == 0 ? 0 : t.numel() / channels;
}

__attribute__((noinline)) int call(const Joins& row, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t operands = row.channels.size(), expected = operands + row.results.size();
  const std::vector<TensorView> views = views_of(row.words, args, count, expected);
  const int64_t bytes = row.element == Element::kDouble ? 8 : row.element == Element::kFloat ? 4 : 2;
  RelayWgradJoinsCall z{};
  for (size_t i = 0; i < operands; ++i) z.rows = rows_of(row, views[i], row.channels[i], views[0]);
  int terms = 0;
  for (size_t i = 0; i < row.results.size(); ++i) {
    const TensorView& out = views[operands + i];
    int64_t channels = 0, begin = 0;
    for (const Part& part : row.results[i]) channels += part.width;
    z.rows = rows_of(row, out, channels, views[0]);
    for (const Part& part : row.results[i]) {
      char* const to = pointer_of(&out) + begin * bytes;
      begin += part.width;
      if (part.terms.size() == 1) {  // is there already, where the result lies over its operand?
        const Channels& one = part.terms.front();
        const bool there = pointer_of(&views[one.operand]) + one.first * bytes == to;
        if (there && row.channels[one.operand] == channels) continue;
      }
      RelayWgradJoinsPiece& piece = z.piece[z.pieces++];
      piece.to = to;
      piece.stride = channels;
      piece.width = static_cast<int>(part.width);
      piece.first = terms;
      piece.terms = static_cast<int>(part.terms.size());
      for (const Channels& one : part.terms) {
        const TensorView& from = views[one.operand];
        z.term[terms++] = {pointer_of(&from) + one.first * bytes, row.channels[one.operand]};
      }
    }
  }
  if (z.rows == 0 || z.pieces == 0) return 0;
  const int device = views[0].device().device_id;
  on_stream(row.words, device, [&](cudaStream_t stream) {
    z.multiprocessors = attribute_of(device, cudaDevAttrMultiProcessorCount);
    enqueue(row, z, stream);
  });
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
