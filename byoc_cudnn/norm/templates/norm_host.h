// ---- calls of normalizations ---------------------------------------------------------------------------

namespace {

// What a call is given, by name; what is numbered, of further normalizations, likewise.
struct Tensors {
  const TensorView *x = nullptr, *dy = nullptr, *dy2 = nullptr, *y = nullptr, *residual = nullptr,
                   *dx = nullptr, *dresidual = nullptr, *more = nullptr, *skip = nullptr, *total = nullptr;
  const TensorView *gamma = nullptr, *beta = nullptr, *mean = nullptr, *rstd = nullptr,
                   *running_mean = nullptr, *running_var = nullptr, *dgamma = nullptr,
                   *dbeta = nullptr, *new_running_mean = nullptr, *new_running_var = nullptr;
  const TensorView *mask = nullptr, *new_mask = nullptr, *joined = nullptr, *own = nullptr;
  const TensorView *gate = nullptr, *lift = nullptr, *sums = nullptr, *squeezed = nullptr,
                   *dgate = nullptr, *new_sums = nullptr;
};

using Member = const TensorView* Tensors::*;

// A tensor of a call, or of a further normalization's part of it, the first of which is 1.
struct Slot {
  Member member;
  int other = 0;
  Slot(Member member, int other = 0) : member(member), other(other) {}
  bool operator==(Member of_all) const { return other == 0 && member == of_all; }
  const TensorView& in(const Tensors* all) const { return *(all[other].*member); }
};

struct Named {
  Member slot;
  const char* name;
  bool rows;  // of rows and channels; else one value a channel, or for each group of an image
  int of_images = 0;  // so many values for each channel of an image
  bool statistic() const { return slot == &Tensors::mean || slot == &Tensors::rstd; }
};

inline const Named& named(Member slot) {
  static const Named kNamed[] = {
      {&Tensors::x, "x", true}, {&Tensors::dy, "dy", true}, {&Tensors::dy2, "dy2", true},
      {&Tensors::y, "y", true}, {&Tensors::residual, "residual", true}, {&Tensors::dx, "dx", true},
      {&Tensors::dresidual, "dresidual", true}, {&Tensors::joined, "joined", true},
      {&Tensors::own, "own", true}, {&Tensors::more, "more", true}, {&Tensors::skip, "skip", true},
      {&Tensors::total, "total", true}, {&Tensors::gamma, "gamma", false},
      {&Tensors::beta, "beta", false}, {&Tensors::mean, "mean", false},
      {&Tensors::rstd, "rstd", false}, {&Tensors::running_mean, "running_mean", false},
      {&Tensors::running_var, "running_var", false}, {&Tensors::dgamma, "dgamma", false},
      {&Tensors::dbeta, "dbeta", false}, {&Tensors::new_running_mean, "new_running_mean", false},
      {&Tensors::new_running_var, "new_running_var", false}, {&Tensors::gate, "gate", false, 1},
      {&Tensors::lift, "lift", false, 1}, {&Tensors::squeezed, "squeezed", false, 1},
      {&Tensors::dgate, "dgate", false, 1}, {&Tensors::sums, "sums", false, 4},
      {&Tensors::new_sums, "sums", false, 4}};
  for (const Named& one : kNamed) {
    if (one.slot == slot) return one;
  }
  TVM_FFI_THROW(InternalError) << "a tensor without a name";
  TVM_FFI_UNREACHABLE();
}

// Channels of another tensor, from the `first` on, of so many; no channels: none.
struct Slice {
  int64_t first, channels;
};

// What is known of a call when its code is generated; sizes come with the tensors.
struct Norm {
  const char* words;
  RelayWgradNormKernel* kernel;
  const char* name;  // the kernel's
  Element element, made;  // made: of y and dy
  double epsilon, momentum, alpha;
  bool unbiased, grouped;  // grouped: statistics are those of groups of an image's channels
  bool by_row;             // an image is a row, and a group all of it
  bool gated;              // around a gate: images have sums, but statistics are the batch's
  int pooled[8];  // taps, strides, padding (top, left, bottom, right) of a max pooling; or no taps
  std::vector<Slot> tensors;  // operands, then results
  std::vector<Slice> slices;  // of dy and dy2; none where they are tensors of their own
  Slice place, within;        // of y, and of x, among a joined tensor's channels
};

// What is pooled, and its index: windows of x.
inline void expect_pooled(const Norm& norm, const char* name, const TensorView& t,
                          const TensorView& index, const TensorView& x) {
  expect_dtype(norm.words, name, t, norm.element);
  expect_on_device(norm.words, name, t, x);
  expect_on_device(norm.words, "index", index, x);
  expect_bytes(norm.words, "index", index);
  bool same = x.ndim() == 4 && t.ndim() == 4 && index.ndim() == 4 && x.size(0) == t.size(0) &&
              x.size(3) == t.size(3) && x.numel() / x.size(3) < (int64_t{1} << 31);
  for (int i = 0; same && i < 4; ++i) same = t.size(i) == index.size(i);
  if (!same) TVM_FFI_THROW(ValueError) << norm.words << ": shapes that do not fit each other";
  for (int i = 0; i < 2; ++i) {
    expect_windows(norm.words, x.size(1 + i), t.size(1 + i), norm.pooled[i], norm.pooled[2 + i],
                   norm.pooled[4 + i], norm.pooled[6 + i]);
  }
}

// A byte for each 16 bytes of a row.
inline void expect_mask(const Norm& norm, const TensorView& t, const TensorView& like) {
  const int64_t channels = like.size(like.ndim() - 1), pack = 16 / (like.dtype().bits / 8);
  const int64_t packs = (channels + pack - 1) / pack, bytes = like.numel() / channels * packs;
  expect_bytes(norm.words, "mask", t);
  expect_on_device(norm.words, "mask", t, like);
  if (t.numel() != bytes) {
    TVM_FFI_THROW(ValueError) << norm.words << ": mask must have a byte for each " << pack
                              << " channels of a row, " << bytes << " of them, got " << t.numel();
  }
}

// Rows of other tensors' channels, among which x's size of them are.
inline void expect_slice(const Norm& norm, const char* name, const Slice& slice, const TensorView& t,
                         const TensorView& like) {
  expect_dtype(norm.words, name, t, norm.element);
  expect_on_device(norm.words, name, t, like);
  const int last = like.ndim() - 1;
  bool same = t.ndim() == like.ndim() && t.size(last) == slice.channels &&
              slice.first + like.size(last) <= slice.channels;
  for (int i = 0; same && i < last; ++i) same = t.size(i) == like.size(i);
  if (!same) {
    TVM_FFI_THROW(ValueError) << norm.words << ": " << name << " must have the rows of x and "
                              << slice.channels << " channels, of which x's " << like.size(last)
                              << " begin at " << slice.first;
  }
}

inline void expect(const Norm& norm, const Slot& slot, const TensorView& t, const TensorView& like) {
  const Named& what = named(slot.member);
  const bool rows = what.rows;
  const std::string numbered = what.name + (slot.other > 0 ? std::to_string(slot.other + 1) : "");
  const char* const name = numbered.c_str();
  const bool doubles = norm.element == Element::kDouble;
  const bool made = slot == &Tensors::y || slot == &Tensors::dy;
  expect_dtype(norm.words, name, t, made ? norm.made : rows || doubles ? norm.element : Element::kFloat);
  expect_on_device(norm.words, name, t, like);
  const int64_t channels = like.size(like.ndim() - 1);
  if (what.of_images != 0) {
    const int64_t wanted = what.of_images * like.size(0) * channels;
    if (t.ndim() < 2 || t.size(t.ndim() - 1) != channels || t.numel() != wanted) {
      TVM_FFI_THROW(ValueError) << norm.words << ": " << name << " must have " << what.of_images
                                << " for each of " << like.size(0) << " images and " << channels
                                << " channels, got " << t.numel() << " elements";
    }
    return;
  }
  if (norm.grouped && what.statistic()) {
    if (t.ndim() != 2 || t.size(0) != like.size(0) || t.size(1) == 0 || channels % t.size(1) != 0) {
      TVM_FFI_THROW(ValueError) << norm.words << ": " << name << " must have two axes, of the "
                                << like.size(0) << " images and of groups of the " << channels
                                << " channels of x, got " << t.ndim() << " axes and " << t.numel()
                                << " elements";
    }
    return;
  }
  if (!rows) {
    if (t.ndim() != 1 || t.size(0) != channels) {
      TVM_FFI_THROW(ValueError) << norm.words << ": " << name << " must have one axis, of the "
                                << channels << " channels of x, got " << t.ndim() << " axes and "
                                << t.numel() << " elements";
    }
    return;
  }
  bool same = t.ndim() == like.ndim();
  for (int i = 0; same && i < t.ndim(); ++i) same = t.size(i) == like.size(i);
  if (!same) TVM_FFI_THROW(ValueError) << norm.words << ": " << name << " has another shape than x";
}

inline void enqueue(const Norm& norm, RelayWgradNormCall& call, void* block, int64_t bytes,
                    cudaStream_t stream) {
  call.workspace = block;
  call.workspace_bytes = bytes;
  launched(norm.kernel(call, stream), norm.name);
}

// For tests and measurements: 0 never takes one launch for small tensors.
inline bool together() {
  const char* const text = std::getenv("RELAY_WGRAD_TOGETHER");
  return text == nullptr || text[0] != '0';
}

// Whether packs of channels lie in one row of the other tensor, at multiples of themselves.
inline void expect_packs(const Norm& norm, const Slice& slice, int64_t channels, int64_t bytes) {
  const int64_t pack = 16 / bytes;
  if (channels % pack != 0 || slice.first % pack != 0 || slice.channels % pack != 0) {
    TVM_FFI_THROW(ValueError) << norm.words << ": " << channels << " channels from " << slice.first
                              << " on, of " << slice.channels << ", must each be multiples of " << pack;
  }
}

// A result that is channels of a joined tensor: what that has so far, unless it lies there already.
inline void placed(const Norm& norm, const Tensors& t, RelayWgradNormCall& call, cudaStream_t stream) {
  const int64_t bytes = t.x->dtype().bits / 8;
  expect_packs(norm, norm.place, call.channels, bytes);
  char* const all = pointer_of(t.y);
  if (t.joined != nullptr && pointer_of(t.joined) != all) {
    const auto size = static_cast<size_t>(t.y->numel() * bytes);
    check(cudaMemcpyAsync(all, pointer_of(t.joined), size, cudaMemcpyDeviceToDevice, stream),
          "copying what is joined so far");
  }
  call.out = all + norm.place.first * bytes;
  call.out_stride = norm.place.channels;
  call.own = pointer_of(t.own);
}

// all : what is a call's, then of each further normalization.
inline void run(const Norm& norm, const Tensors* all, const TensorView* workspace) {
  const Tensors& t = all[0];
  // Or what has x's shape, where x is among others' channels.
  const TensorView& x = norm.within.channels == 0 ? *t.x : t.dx != nullptr ? *t.dx : *t.y;
  if (x.ndim() < 2) {
    TVM_FFI_THROW(ValueError) << norm.words << ": x must have at least 2 axes, got " << x.ndim();
  }
  const int64_t channels = x.size(x.ndim() - 1);
  if (x.numel() == 0) {
    TVM_FFI_THROW(ValueError) << norm.words << ": x has no elements, so there are no statistics";
  }
  const bool backward = t.dy != nullptr, pooled = norm.pooled[0] != 0;
  const Member windows = backward ? &Tensors::dy : &Tensors::y;
  for (Slot slot : norm.tensors) {
    const bool another = pooled && slot == windows;
    if (norm.within.channels != 0 && slot == &Tensors::x) {
      expect_slice(norm, "x", norm.within, *t.x, x);
      expect_packs(norm, norm.within, channels, x.dtype().bits / 8);
      continue;
    }
    if (norm.place.channels != 0 && (slot == &Tensors::y || slot == &Tensors::joined)) {
      expect_slice(norm, named(slot.member).name, norm.place, slot.in(all), x);
      continue;
    }
    if (!norm.slices.empty() && (slot == &Tensors::dy || slot == &Tensors::dy2)) {
      const size_t which = slot == &Tensors::dy2;
      expect_slice(norm, named(slot.member).name, norm.slices.at(which), slot.in(all), x);
      continue;
    }
    if (!(slot == &Tensors::mask) && !(slot == &Tensors::new_mask) && !another) {
      expect(norm, slot, slot.in(all), x);
    }
  }
  if (norm.grouped && t.mean->size(1) != t.rstd->size(1)) {
    TVM_FFI_THROW(ValueError) << norm.words << ": mean has " << t.mean->size(1)
                              << " groups and rstd " << t.rstd->size(1);
  }
  if (norm.by_row && (t.mean->size(1) != 1 || t.mean->size(0) * channels != x.numel())) {
    TVM_FFI_THROW(ValueError) << norm.words << ": x must have rows on its first axis and channels on"
                              << " its last, and one statistic for each row, got "
                              << t.mean->size(1) << " for each of " << t.mean->size(0)
                              << " images of " << x.numel() / x.size(0) << " elements";
  }
  for (const TensorView* mask : {t.mask, t.new_mask}) {
    if (mask == nullptr) continue;
    if (pooled) {
      expect_pooled(norm, named(windows).name, *(t.*windows), *mask, x);
    } else {
      expect_mask(norm, *mask, x);
    }
  }
  const int device = x.device().device_id, sum_bytes = norm.element == Element::kDouble ? 8 : 4;
  on_stream(norm.words, device, [&](cudaStream_t stream) {
    RelayWgradNormCall call{};
    call.images = norm.grouped || norm.gated ? x.size(0) : 1;
    call.rows = x.numel() / channels / call.images;
    call.channels = channels;
    call.groups = norm.grouped ? t.mean->size(1) : channels;
    call.alpha = norm.alpha;
    call.epsilon = norm.epsilon;
    call.momentum = norm.momentum;
    call.unbiased = norm.unbiased;
    Called::get().note(norm.words, norm.name);
    call.multiprocessors = attribute_of(device, cudaDevAttrMultiProcessorCount);
    call.together = together();
    call.x = pointer_of(t.x) + norm.within.first * (x.dtype().bits / 8);
    call.x_stride = norm.within.channels;
    call.dy = pointer_of(t.dy);
    call.dy2 = pointer_of(t.dy2);
    if (!norm.slices.empty()) {
      const int64_t bytes = x.dtype().bits / 8;
      const Slice &one = norm.slices.front(), &two = norm.slices.back();
      call.dy = pointer_of(t.dy) + one.first * bytes;
      call.dy_stride = one.channels;
      if (t.dy2 != nullptr) call.dy2 = pointer_of(t.dy2) + two.first * bytes;
      call.dy2_stride = two.channels;
    }
    call.residual = pointer_of(t.residual);
    call.more = pointer_of(t.more);
    call.skip = pointer_of(t.skip);
    call.total = pointer_of(t.total);
    call.gamma = pointer_of(t.gamma);
    call.beta = pointer_of(t.beta);
    call.running_mean = pointer_of(t.running_mean);
    call.running_var = pointer_of(t.running_var);
    call.out = pointer_of(backward ? t.dx : t.y);
    if (norm.place.channels != 0) placed(norm, t, call, stream);
    call.dresidual = pointer_of(t.dresidual);
    call.first = pointer_of(backward ? t.dgamma : t.mean);
    call.second = pointer_of(backward ? t.dbeta : t.rstd);
    call.new_mean = pointer_of(t.new_running_mean);
    call.new_var = pointer_of(t.new_running_var);
    call.mask = pointer_of(t.mask);
    call.new_mask = pointer_of(t.new_mask);
    if (backward || t.gate != nullptr) {
      call.y = pointer_of(t.y);
      call.mean = pointer_of(t.mean);
      call.rstd = pointer_of(t.rstd);
    }
    call.gate = pointer_of(t.gate);
    call.lift = pointer_of(t.lift);
    call.sums = pointer_of(t.sums);
    call.squeezed = pointer_of(t.dgate != nullptr ? t.dgate : t.squeezed);
    call.new_sums = pointer_of(t.new_sums);
    if (pooled) {
      const TensorView& y = *(t.*windows);
      call.windows = {x.size(0), x.size(1), x.size(2), channels, y.size(1), y.size(2), norm.pooled[4],
                      norm.pooled[5]};
    }
    int64_t others = 0;
    for (const Tensors* o = all + 1; o <= all + kNormOthers && o->x != nullptr; ++o) {
      RelayWgradNormOther& other = call.others[others++];
      other.x = pointer_of(o->x);
      other.gamma = pointer_of(o->gamma);
      other.beta = pointer_of(o->beta);
      other.running_mean = pointer_of(o->running_mean);
      other.running_var = pointer_of(o->running_var);
      other.out = pointer_of(o->dx);
      other.first = pointer_of(backward ? o->dgamma : o->mean);
      other.second = pointer_of(backward ? o->dbeta : o->rstd);
      other.new_mean = pointer_of(o->new_running_mean);
      other.new_var = pointer_of(o->new_running_var);
      if (backward) {
        other.mean = pointer_of(o->mean);
        other.rstd = pointer_of(o->rstd);
      }
    }
    const int64_t bytes = norm.by_row
                              ? norm_row_workspace(channels, call.multiprocessors, sum_bytes)
                              : norm_workspace(call.images, channels, call.multiprocessors, sum_bytes,
                                               norm_sums(others));
    if (workspace != nullptr) {
      const int64_t vector = 16 / (x.dtype().bits / 8);
      const bool tells = !pooled && (t.mask != nullptr || t.new_mask != nullptr) && others == 0;
      const int64_t fold =
          tells ? norm_fold(call.images, call.rows, channels, call.groups, vector) : 1;
      const int64_t least = norm.by_row ? kNormRowSums * sum_bytes * channels
                                        : norm_sums(others) * sum_bytes * channels * fold * call.images;
      const int64_t given = workspace->numel() * (workspace->dtype().bits / 8);
      if (workspace->device().device_type != kDLCUDA || workspace->device().device_id != device ||
          !workspace->IsContiguous() || given < least ||
          reinterpret_cast<uintptr_t>(pointer_of(workspace)) % 16 != 0) {
        TVM_FFI_THROW(ValueError) << norm.words << ": the workspace must have "
                                  << least << " bytes on the device of x, better "
                                  << bytes << ", and lie at a multiple of 16; got " << given;
      }
      enqueue(norm, call, pointer_of(workspace), given, stream);
      return;
    }
    with_workspace(device, stream, bytes, is_captured(stream),
                   [&](void* block) { enqueue(norm, call, block, bytes, stream); });
  });
}

// TVM FFI's calling convention, read once and not in a template for each exported function.
__attribute__((noinline)) int call(const Norm& norm, const TVMFFIAny* args, int32_t count) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const size_t expected = norm.tensors.size(), given = static_cast<size_t>(count);
  if (given != expected && given != expected + 1) {
    TVM_FFI_THROW(TypeError) << norm.words << ": expected " << expected
                             << " tensors, or one more as workspace, got " << count << " arguments";
  }
  const std::vector<TensorView> views = views_of(args, count);
  Tensors tensors[kNormOthers + 1];
  for (size_t i = 0; i < expected; ++i) {
    const Slot& slot = norm.tensors[i];
    tensors[slot.other].*slot.member = &views[i];
  }
  run(norm, tensors, given > expected ? &views[expected] : nullptr);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace
