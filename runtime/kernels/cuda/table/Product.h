// What rows of products share: which calls a stack of products is, and the parts of a call that all have.
#pragma once
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/kernels/cuda/table/Matmul.h"

namespace recast::cuda {

/// A stack of products as calls of one form.
struct ProductCalls {
  /// Which matrix of each operand a call begins with.
  struct First {
    int64_t a = 0, b = 0, d = 0;
  };
  int64_t m = 0, batch = 1;     ///< Of each call.
  int64_t stepA = 0, stepB = 0; ///< Within its batch, in matrices; d's is 1.
  std::vector<First> first;
};

/// `m`: rows of one matrix of a. Batch dimensions broadcast. A single b is one call for all rows of a, which then is
/// stored [.., m, k]. `oneMatrixEach`: else calls have no batch.
ProductCalls productCalls(std::span<const int64_t> batchA, std::span<const int64_t> batchB,
                          std::span<const int64_t> batch, int64_t m, bool oneMatrixEach);

/// Workspace of a call, or none.
Operand scratchFor(Program &program, const MatmulArgs &args);
/// Adds the result and the workspace to a call that has its operands, and the call to the program.
void finishProduct(Program &program, LaunchOf<MatmulArgs> launch, double beta, Operand d, Operand scratch);
/// The matrix in output 0 becomes the broadcast of input `c`; false where it does not broadcast.
bool broadcastC(const StepSpec &spec, Program &program, size_t c);

} // namespace recast::cuda
