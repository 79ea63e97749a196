// The command line that recast-run and recast-exec share.
#pragma once
#include "runtime/session/Session.h"
#include "tools/common/ExitCodes.h"
#include <CLI/CLI.hpp>

namespace recast::tools {

/// Prints "<tool>: error: <text>" and gives the exit code of a model, data or run that is wrong.
int failRun(const std::string &tool, const std::string &text);

/// What a tool is called and how its help describes it.
struct ToolText {
  std::string name, overview;
  std::string argument, argumentText; ///< What it runs: "MODEL".
  std::string example;
};

class RunFlags {
public:
  explicit RunFlags(const ToolText &text);

  /// Nothing, or the exit code: after --help, or after saying on standard error what is wrong.
  std::optional<int> parse(int argc, char **argv);
  /// Prints wrong usage and gives its exit code.
  int wrong(const std::string &message) const;

  CLI::App app; ///< Takes the flags of one tool, before parse().
  std::string tool, model, device = "cpu";
  SessionOptions session;
  int threads = 0; ///< 0: as many as the machine has.
  bool explain = false;
  /// Of --device=cuda:N; of several ranks each takes the device of its number on its machine where none is said.
  int deviceOrdinal() const;
  int checkedArchitecture = 0; ///< Whose rules --device=check holds a plan against; 0: every device's.

private:
  void addDataFlags();
  void addRunFlags();
  std::string problem();
  std::string dataProblem();

  DataOptions data;
  std::string layout = "samples";
  int64_t threadsArg = 0;
};

} // namespace recast::tools
