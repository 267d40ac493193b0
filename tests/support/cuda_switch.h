// Where a fiber goes on.  It begins by a context; from then on places change by jumps, which need no call of
// the system: `swapcontext` saves the signals' mask by two, and takes twenty times as long.

#ifndef RW_CUDA_SWITCH
#define RW_CUDA_SWITCH

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>

class Place {
 public:
  // From here on to there; returns when something goes on to this one.
  [[gnu::noinline]] void leave_for(Place& other) {
    if (_setjmp(here_) == 0) _longjmp(other.here_, 1);
  }

  // From here into a function that never returns.
  [[gnu::noinline]] void leave_for(void (*body)(), char* stack, size_t bytes) {
    if (_setjmp(here_) == 0) begin(body, stack, bytes);
  }

 private:
  [[gnu::noinline]] static void begin(void (*body)(), char* stack, size_t bytes) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, body, 0);
    setcontext(&context);
  }

  jmp_buf here_;
};

// Memory of a fiber's own; what is not used of it takes none.
class Stack {
 public:
  static constexpr size_t kBytes = 64 << 10;
  char* data() { return memory_.get(); }

 private:
  std::unique_ptr<char[]> memory_{new char[kBytes]};
};

#endif
