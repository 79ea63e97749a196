// Finds the processes that train together.
#pragma once
#include "runtime/exec/Communicator.h"
#include <memory>

namespace recast {

/// Which library brings ranks together.
enum class Launcher : uint8_t {
  None, ///< This process is alone.
  Mpi,  ///< Started by mpirun, mpiexec or Slurm.
  Env,  ///< RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun's: Gloo.
};

/// What the environment variables of this process say.
Launcher findLauncher();

/// Joins the ranks that were started together, and waits for all of them; null where this process is alone. An error
/// says which variable or library is missing.
Result<std::unique_ptr<Communicator>> joinRanks();

/// The number of this process among those on its machine, as what started it says; -1 where it says none.
int localRank();

} // namespace recast
