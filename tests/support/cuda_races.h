// Races in the shared memory of `cuda_warps.h`'s device, by what happens before what; with RW_RACES only.
//
// A thread's clock says of each thread up to where it is known.  What makes it known: a barrier of the block,
// `__syncwarp`, and a gate, from the lane that arrives to all who pass; not that a warp multiplies or reads
// matrices together, which orders no memory.  An access is a race if one of another thread to the same
// place is not known, and one of both writes.  A copy writes at any time from when it is asked for until
// its thread waits for it: nothing may touch its place meanwhile, not even that thread.

#include <cstdio>
#include <utility>
#include <vector>

namespace races {

#ifdef RW_RACES
using Clock = std::vector<unsigned>;

constexpr unsigned kNever = 0xffffffffu;
constexpr unsigned kPiece = 2;  // bytes

struct Piece {
  size_t writer = 0;
  unsigned written = 0;
  std::vector<std::pair<size_t, unsigned>> reads;  // of each thread the last one since it was written
};

inline std::vector<Clock> clocks;
inline std::vector<Piece> pieces;
inline Clock arrived, passed;  // of a gate: what comes with those who arrive, and with its last turn
inline int found = 0;

inline void begin(size_t threads, size_t bytes) {
  clocks.assign(threads, Clock(threads, 0));
  for (size_t i = 0; i < threads; ++i) clocks[i][i] = 1;
  pieces.assign(bytes / kPiece + 1, {});
  arrived.assign(threads, 0);
  passed.assign(threads, 0);
}

inline void race(const char* what, size_t thread, size_t other, unsigned place) {
  if (++found <= 5) std::printf("thread %zu %s at %u, of %zu not known\n", thread, what, place, other);
}

inline bool knows(size_t thread, size_t other, unsigned when) { return clocks[thread][other] >= when; }

inline void read(size_t thread, unsigned place, unsigned bytes) {
  for (unsigned i = place / kPiece; i < (place + bytes) / kPiece; ++i) {
    Piece& piece = pieces[i];
    if (!knows(thread, piece.writer, piece.written)) race("reads", thread, piece.writer, i * kPiece);
    bool is = false;
    for (auto& [reader, when] : piece.reads) {
      if (reader == thread) when = clocks[thread][thread], is = true;
    }
    if (!is) piece.reads.emplace_back(thread, clocks[thread][thread]);
  }
}

inline void may_write(size_t thread, unsigned place, unsigned bytes, unsigned when) {
  for (unsigned i = place / kPiece; i < (place + bytes) / kPiece; ++i) {
    Piece& piece = pieces[i];
    if (!knows(thread, piece.writer, piece.written)) race("writes", thread, piece.writer, i * kPiece);
    for (const auto& [reader, read] : piece.reads) {
      if (!knows(thread, reader, read)) race("writes", thread, reader, i * kPiece);
    }
    piece.writer = thread, piece.written = when;
    piece.reads.clear();
  }
}

inline void write(size_t thread, unsigned place, unsigned bytes) {
  may_write(thread, place, bytes, clocks[thread][thread]);
}

inline void asks(size_t thread, unsigned place, unsigned bytes) {
  may_write(thread, place, bytes, kNever);
}

inline void is_copied(size_t thread, unsigned place, unsigned bytes) {
  for (unsigned i = place / kPiece; i < (place + bytes) / kPiece; ++i) {
    pieces[i].writer = thread, pieces[i].written = clocks[thread][thread];
  }
}

inline void take(Clock& to, const Clock& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = to[i] > from[i] ? to[i] : from[i];
}

// Threads from one on that have all come to a barrier.
inline void meet(size_t first, size_t count) {
  Clock all(clocks.size(), 0);
  for (size_t i = first; i < first + count; ++i) take(all, clocks[i]);
  for (size_t i = first; i < first + count; ++i) {
    clocks[i] = all;
    ++clocks[i][i];
  }
}

inline void arrives(size_t thread) {
  take(arrived, clocks[thread]);
  ++clocks[thread][thread];
}

inline void turns() { passed = arrived; }
inline void passes(size_t thread) { take(clocks[thread], passed); }

#else
inline void begin(size_t, size_t) {}
inline void read(size_t, unsigned, unsigned) {}
inline void write(size_t, unsigned, unsigned) {}
inline void asks(size_t, unsigned, unsigned) {}
inline void is_copied(size_t, unsigned, unsigned) {}
inline void meet(size_t, size_t) {}
inline void arrives(size_t) {}
inline void turns() {}
inline void passes(size_t) {}
inline constexpr int found = 0;
#endif

}  // namespace races

extern "C" int races_found() { return races::found; }
