// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// A further normalization whose result is added: its own part of a call, null where there is none.
struct RelayWgradNormOther {
  const void *x, *gamma, *beta, *mean, *rstd, *running_mean, *running_var;
  void *out, *first, *second, *new_mean, *new_var;
};

// How many there are at most.
constexpr int kNormOthers = 3;

// The max pooling that follows; its index is the call's mask.
struct RelayWgradNormWindows {
  int64_t n, h, w, c, p, q;
  int top, left;
};

// One call.  A tensor is `images` images of `rows` rows of `channels`; parameters have a value a channel,
// statistics one for each of `groups` groups of channels of an image.  Of a batch all rows are one
// image's, and a channel is a group.
struct RelayWgradNormCall {
  int64_t images, rows, channels, groups;
  double epsilon, momentum;
  double alpha;         // the activation's parameter
  bool unbiased;        // the running variance is of the sample
  int multiprocessors;  // of the device
  int together;         // whether one launch may do it, where the tensors are small
  // Operands; what a call has not is null.
  const void *x, *dy, *dy2, *y, *residual;  // dy2 is added to dy
  const void *gamma, *beta, *mean, *rstd, *running_mean, *running_var;
  const void* mask;  // a byte for each 16 bytes of a row: what the activation lets through
  // Results.
  void *out, *dresidual;  // out: y or dx
  void *first, *second;   // mean and rstd, or dgamma and dbeta
  void *new_mean, *new_var, *new_mask;
  void* workspace;
  int64_t workspace_bytes;
  RelayWgradNormOther others[kNormOthers];
  RelayWgradNormWindows windows;
  // Around a gate, of which each channel of an image has a number: what is before `out` is as above,
  // of a batch that is `images` images.  `sums` are four for each channel of an image.
  const void *gate, *lift, *sums;
  void *squeezed, *new_sums;  // squeezed: or the gate's gradient
  int64_t fold;  // of kernels' own: rows that are side by side
  // Of a backward call whose gradients are channels of other tensors: from a row to the next.
  int64_t dy_stride, dy2_stride;
  // Of a forward call whose result is channels of a joined tensor: from a row to the next, and where the
  // result is by itself too; or null.
  int64_t out_stride;
  void* own;
  int64_t x_stride;  // where x is channels of another tensor: from a row to the next
  // `more` is added to x by the first pass, which writes `total`, as it does of dy and dy2; `skip` is added
  // to dx.
  const void *more, *skip;
  void* total;
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradNormKernel = int(const RelayWgradNormCall&, cudaStream_t);

// Blocks of a multiprocessor that make partial sums, of 256 threads; channels of a block, and sums of
// a channel, at most.
constexpr int64_t kNormBlocks = 2, kNormChannels = 256, kNormSums = 3;

// Of a call with so many further normalizations.
inline int64_t norm_sums(int64_t others) { return others + 2 > kNormSums ? others + 2 : kNormSums; }

// Of calls whose rows have statistics of their own: blocks of a multiprocessor, and sums of a channel.
constexpr int64_t kNormRowBlocks = 4, kNormRowSums = 2;

// Threads side by side for so many packs of a row: as wide as it goes with few of them idle.  Four threads
// have 64 bytes of a row.
inline int norm_width(int64_t packs) {
  int width = 32;
  while (width > 4 && (packs + width - 1) / width * width * 8 > packs * 9) width /= 2;
  return width;
}

// Rows that kernels take side by side, as one of so many times the channels, where each channel has
// statistics of its own: so few that it is whole packs of `vector` and few threads of 128 bytes are idle,
// or else whole packs.  Of less a block reads and writes parts of what memory gives at once.  By sizes
// alone, since what goes as bits from forward to backward is in such rows' order; partial sums have room
// for 4096 channels of a batch, and of images as of 256.
inline int64_t norm_fold(int64_t images, int64_t rows, int64_t channels, int64_t groups, int64_t vector) {
  const int64_t most = images == 1 ? 4096 : (channels + kNormChannels - 1) / kNormChannels * kNormChannels;
  int64_t least = 0;
  for (int64_t fold = 1; fold <= 32 && groups == channels && channels * fold <= most; ++fold) {
    if (rows % fold != 0 || channels * fold % vector != 0) continue;
    if (norm_width(channels * fold / vector) > 4) return fold;
    if (least == 0) least = fold;
  }
  return least == 0 ? 1 : least;
}

// Bytes that a call's partial sums take at most.  Fewer are right too, with fewer blocks, as long as
// there are all sums for each channel of an image.
inline int64_t norm_workspace(int64_t images, int64_t channels, int multiprocessors, int sum_bytes,
                              int64_t sums) {
  const int64_t least = images * ((channels + kNormChannels - 1) / kNormChannels);
  const int64_t blocks = kNormBlocks * multiprocessors;
  return sums * sum_bytes * kNormChannels * (least > blocks ? least : blocks);
}

inline int64_t norm_row_workspace(int64_t channels, int multiprocessors, int sum_bytes) {
  return kNormRowBlocks * multiprocessors * kNormRowSums * sum_bytes * channels;
}
