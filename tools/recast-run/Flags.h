// recast-run's command line.
#pragma once
#include "runtime/session/Session.h"
#include <llvm/Support/CommandLine.h>
#include <map>

namespace recast::tools {

/// The flags, registered while the object lives.
class Flags {
public:
  Flags();
  /// False on wrong usage, after saying what is wrong on standard error. --help ends the process.
  bool parse(int argc, char **argv);

  std::string model;
  SessionOptions session;
  std::map<std::string, int64_t> dims;
  std::string device;
  int threads = 0; ///< 0: as many as the machine has.
  bool explain = false;
  bool regions = true; ///< What no library takes is generated.
  std::optional<int64_t> regionElems; ///< CompileOptions::regionElems, where not the default.

private:
  template <typename T> using Opt = llvm::cl::opt<T>;
  bool readDims();
  bool readNumbers();
  bool readChoices();
  bool wrong(const llvm::Twine &message) const;

  llvm::cl::OptionCategory category{"Options"};
  Opt<std::string> modelArg, data, stateIn, stateOut, checkpointDir, outputs, metrics, schedule, deviceArg, profile,
      kernels;
  Opt<DataLayout> layout;
  Opt<int64_t> batchSize, epochs, steps, checkpointEvery, warmupSteps, threadsArg;
  Opt<uint64_t> seed;
  Opt<bool> shuffle, dropLast, findNonFinite, resume, explainArg;
  Opt<double> minLr;
  llvm::cl::list<std::string> dimArgs;
  llvm::cl::extrahelp example;
};

} // namespace recast::tools
