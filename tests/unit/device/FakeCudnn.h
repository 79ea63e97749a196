// Functions that stand in for cuDNN's: convolutions are computed from its descriptors, whose rules they check, and the
// order of calls.
#pragma once
#include "runtime/device/cuda/Cudnn.h"
#include <functional>

namespace recast::device::test {

/// What the stand-ins do and note. One at a time: the functions are plain ones.
struct FakeCudnn {
  bool isBroken = false; ///< cudnnCreate fails.
  /// Suggestions, the fastest first, by cuda::ConvolutionResult; and the workspace that each takes.
  std::vector<ConvolutionAlgorithm> suggestions[3];
  /// Does work on a stream.
  std::function<int(CudaHandle stream, std::function<void()> work)> perform;
  std::vector<int> algorithms; ///< Of the convolutions that ran.
  std::vector<int> maths;      ///< Their cudnnMathType_t.
  std::vector<int> refused;    ///< Algorithms that are suggested and do not run.
  int choices = 0;             ///< Calls that asked for suggestions.

  /// With what a library has: transforms first, then what is not deterministic, then the rest.
  FakeCudnn();
};

/// `fake` outlives the functions' use.
CudnnFunctions fakeCudnn(FakeCudnn &fake);

} // namespace recast::device::test
