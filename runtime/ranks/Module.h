// The interface to the modules that link MPI and Gloo: they are opened only where several ranks start.
#pragma once
#include "runtime/exec/Communicator.h"
#include <string>

namespace recast {

/// Who this process is among the others: of Launcher::Env; MPI knows by itself.
struct RankInfo {
  int rank = 0, size = 1;
  std::string address, port; ///< Where rank 0 listens.
};

/// Makes the communicator, which the caller owns; null with a message in `error`.
using JoinFunction = Communicator *(const RankInfo &info, std::string &error);
inline constexpr const char *kJoinSymbol = "recastJoinRanks";

} // namespace recast
