#include "runtime/ranks/Join.h"
#include "runtime/ranks/Module.h"
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>

namespace recast {

namespace {

std::string variable(const char *name) {
  const char *text = std::getenv(name);
  return text ? text : "";
}

/// The number in a variable; -1 where it is not set or no number.
int numberIn(const char *name) {
  std::string text = variable(name);
  int number = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

/// Beside the program, or in the build's and an installation's folder of libraries.
std::string findModule(const std::string &name) {
  std::error_code error;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::filesystem::path &folder : {program, program / ".." / "lib"})
    if (std::filesystem::exists(folder / name, error))
      return (folder / name).string();
  return "";
}

Result<std::unique_ptr<Communicator>> open(const std::string &library, const RankInfo &info) {
  std::string name = "recast_" + library + ".so", path = findModule(name);
  if (path.empty())
    return Status::error("this build has no " + name + ", which ranks that are started like this need");
  // Never closed: MPI's own handlers stay behind. MPI's plugins look for its symbols among the global ones.
  void *module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!module)
    return Status::error("cannot open " + name + ": " + dlerror());
  auto *join = reinterpret_cast<JoinFunction *>(dlsym(module, kJoinSymbol));
  if (!join)
    return Status::error(name + " is of another version");
  std::string problem;
  std::unique_ptr<Communicator> communicator(join(info, problem));
  if (!communicator)
    return Status::error("cannot join the other ranks: " + problem);
  return communicator;
}

Result<RankInfo> readEnvironment() {
  RankInfo info{numberIn("RANK"), numberIn("WORLD_SIZE"), variable("MASTER_ADDR"), variable("MASTER_PORT")};
  if (info.rank < 0 || info.size < 1 || info.rank >= info.size)
    return Status::error("RANK=" + variable("RANK") + " and WORLD_SIZE=" + variable("WORLD_SIZE") +
                         ": a number from 0 up below WORLD_SIZE is needed");
  if (info.size > 1 && (info.address.empty() || numberIn("MASTER_PORT") < 1))
    return Status::error("WORLD_SIZE=" + variable("WORLD_SIZE") +
                         " needs MASTER_ADDR and MASTER_PORT too: where rank 0 waits for the others");
  return info;
}

} // namespace

Launcher findLauncher() {
  // A step of Slurm that is a single task is no reason to look for others.
  if (numberIn("OMPI_COMM_WORLD_SIZE") > 1 || numberIn("PMI_SIZE") > 1 ||
      (numberIn("SLURM_STEP_NUM_TASKS") > 1 && numberIn("SLURM_PROCID") >= 0))
    return Launcher::Mpi;
  return variable("WORLD_SIZE").empty() || numberIn("WORLD_SIZE") == 1 ? Launcher::None : Launcher::Env;
}

int localRank() {
  // torchrun, Open MPI, MPICH and Intel MPI, Slurm.
  for (const char *name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (int rank = numberIn(name); rank >= 0)
      return rank;
  return -1;
}

Result<std::unique_ptr<Communicator>> joinRanks() {
  switch (findLauncher()) {
  case Launcher::None:
    return std::unique_ptr<Communicator>();
  case Launcher::Mpi:
    return open("mpi", {});
  case Launcher::Env:
    break;
  }
  Result<RankInfo> info = readEnvironment();
  return info ? open("gloo", *info) : info.status();
}

} // namespace recast
