// A GPU of one multiprocessor, which executes PTX one block after the other and one thread after the other.
//
// A launch fails, with a sentence that names kernel, line, block and thread, on
// - an access outside of the allocations, of the block's shared variables or of the parameters; a misaligned one; a
//   write where that is not allowed; a read of shared memory that nobody has written;
// - a barrier, shuffle or ballot that not all threads that it names come to, or from different places of the program;
// - a thread that does not end.
#pragma once
#include "tests/ptx/Memory.h"
#include "tests/ptx/Module.h"
#include <span>

namespace recast::ptx {

struct Grid {
  int64_t blocks = 1;
  int threads = 1;
  bool isReversed = false; ///< Blocks and threads from the last to the first.
};

/// Precondition: `args` has as many bytes as the parameters.
Status launch(const Module &module, const Function &entry, const Grid &grid, std::span<const std::byte> args,
              const Memory &memory);

} // namespace recast::ptx
