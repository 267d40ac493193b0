// ---- what the host's code and a kernel's object agree on -------------------------------------------

#include <cuda_runtime_api.h>

#include <cstdint>

// Of a call, at most: so that it is a kernel's argument.
constexpr int kRelayWgradPieces = 40, kRelayWgradTerms = 96;

// Channels of an operand: where the first row has them, and from a row to the next, in elements.
struct RelayWgradJoinsTerm {
  const void* at;
  int64_t stride;
};

// Neighbouring channels of a result: the sum of terms that lie side by side in the call's.
struct RelayWgradJoinsPiece {
  void* to;
  int64_t stride;
  int width, first, terms;
  int vector, end;  // of kernels' own: channels of a thread; threads of a row up to this piece's last
};

// One call.
struct RelayWgradJoinsCall {
  int64_t rows;
  int multiprocessors;  // of the device
  int pieces;
  int tile, height, each;  // of kernels' own: threads of a row in a block, its rows at once, a thread's
  RelayWgradJoinsPiece piece[kRelayWgradPieces];
  RelayWgradJoinsTerm term[kRelayWgradTerms];
};

// What an object exports: 0, or a cudaError_t, negated.
using RelayWgradJoinsKernel = int(const RelayWgradJoinsCall&, cudaStream_t);
