// A device of `cuda_emulated.h` for ThreadSanitizer: a thread of the CPU for each of a kernel's.

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_emulated.h"

RW_OF_A_THREAD Index threadIdx, blockIdx;
Index gridDim;
extern "C" int times_together() { return emulated::launched_together; }

namespace emulated {

int launches = 0, launched_together = 0;

namespace {

struct Block {
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<double> exchanged;
  std::vector<uint4> shared;

  Block(int threads, size_t bytes) : all(threads), exchanged(threads), shared(bytes / 16 + 1) {
    for (int first = 0; first < threads; first += 32) {
      warps.push_back(std::make_unique<std::barrier<>>(std::min(32, threads - first)));
    }
  }
};

thread_local Block* block;
std::barrier<>* grid;

}  // namespace

void wait_for_block() { block->all.arrive_and_wait(); }
void wait_for_warp() { block->warps[threadIdx.x / 32]->arrive_and_wait(); }
void wait_for_grid() { grid->arrive_and_wait(); }
double* exchanged() { return block->exchanged.data(); }
uint4* shared() { return block->shared.data(); }

void run(dim3 size, int threads, size_t bytes, bool together, const std::function<void()>& kernel) {
  ++launches;
  gridDim = {size.x, size.y, size.z};
  const unsigned blocks = size.x * size.y * size.z;
  auto thread = [&](unsigned b, int t, Block* mine) {
    blockIdx = {b % size.x, b / size.x % size.y, b / (size.x * size.y)};
    threadIdx = {static_cast<unsigned>(t), 0, 0};
    block = mine;
    kernel();
  };
  std::barrier<> everybody(together ? blocks * threads : 1);
  grid = &everybody;
  for (unsigned b = 0; b < blocks; b += together ? blocks : 1) {
    std::vector<std::unique_ptr<Block>> made;
    std::vector<std::thread> running;
    for (unsigned i = b; i < (together ? blocks : b + 1); ++i) {
      made.push_back(std::make_unique<Block>(threads, bytes));
      for (int t = 0; t < threads; ++t) running.emplace_back(thread, i, t, made.back().get());
    }
    for (std::thread& one : running) one.join();
  }
}

}  // namespace emulated
