// A device of `cuda_emulated.h`: each of a kernel's threads is a fiber, and all are one thread of the CPU.
// A fiber runs until it waits; one that waits is entered again when the others of its barrier have come.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda_emulated.h"
#include "cuda_switch.h"

Index threadIdx, blockIdx, gridDim;
extern "C" int times_together() { return emulated::launched_together; }

namespace emulated {

int launches = 0, launched_together = 0;

namespace {

struct Barrier {
  size_t all;  // that must come
  size_t come = 0, turn = 0;
};

struct Block {
  Barrier all;
  std::vector<Barrier> warps;
  std::vector<double> exchanged;
  std::vector<uint4> shared;
};

struct Fiber {
  Place place;
  Stack stack;
  Index thread, of;
  Block* block;
  const Barrier* at;  // that it waits at, since this turn
  size_t turn;
  bool begun, done;
};

Place home;
std::vector<std::unique_ptr<Fiber>> fibers;  // kept from launch to launch
Fiber* current;
Barrier grid;
const std::function<void()>* running;

void body() {
  (*running)();
  current->done = true;
  current->place.leave_for(home);
}

void enter(Fiber& fiber) {
  current = &fiber;
  threadIdx = fiber.thread;
  blockIdx = fiber.of;
  if (fiber.begun) return home.leave_for(fiber.place);
  fiber.begun = true;
  home.leave_for(body, fiber.stack.data(), Stack::kBytes);
}

void wait(Barrier& barrier) {
  if (++barrier.come == barrier.all) {
    barrier.come = 0;
    ++barrier.turn;
    return;
  }
  current->at = &barrier;
  current->turn = barrier.turn;
  current->place.leave_for(home);
}

}  // namespace

void wait_for_block() { wait(current->block->all); }
void wait_for_warp() { wait(current->block->warps[threadIdx.x / 32]); }
void wait_for_grid() { wait(grid); }
double* exchanged() { return current->block->exchanged.data(); }
uint4* shared() { return current->block->shared.data(); }

void run(dim3 size, int threads, size_t bytes, bool together, const std::function<void()>& kernel) {
  ++launches;
  gridDim = {size.x, size.y, size.z};
  running = &kernel;
  const unsigned blocks = size.x * size.y * size.z, at_once = together ? blocks : 1;
  const size_t each = static_cast<size_t>(threads), count = each * at_once;
  grid = {count};
  while (fibers.size() < count) fibers.push_back(std::make_unique<Fiber>());
  for (unsigned first = 0; first < blocks; first += at_once) {
    std::vector<Block> made(at_once);
    for (unsigned i = 0; i < at_once; ++i) {
      made[i] = {{each}, {}, std::vector<double>(each), std::vector<uint4>(bytes / 16 + 1)};
      for (size_t left = each; left > 0; left -= std::min<size_t>(32, left)) {
        made[i].warps.push_back({std::min<size_t>(32, left)});
      }
      const unsigned b = first + i;
      for (size_t t = 0; t < each; ++t) {
        Fiber& fiber = *fibers[i * each + t];
        fiber.at = nullptr;
        fiber.begun = fiber.done = false;
        fiber.thread = {static_cast<unsigned>(t), 0, 0};
        fiber.of = {b % size.x, b / size.x % size.y, b / (size.x * size.y)};
        fiber.block = &made[i];
      }
    }
    for (size_t live = count; live > 0;) {
      bool entered = false;
      for (size_t i = 0; i < count; ++i) {
        Fiber& fiber = *fibers[i];
        if (fiber.done || (fiber.at != nullptr && fiber.at->turn == fiber.turn)) continue;
        entered = true;
        enter(fiber);
        live -= fiber.done;
      }
      if (!entered) {
        std::fprintf(stderr, "%zu threads wait for others that have returned\n", live);
        std::abort();
      }
    }
  }
}

}  // namespace emulated
