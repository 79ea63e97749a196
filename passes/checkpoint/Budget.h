// The values of --memory-budget and --checkpoint.
#pragma once
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <string>
#include <vector>

namespace recast::checkpoint {

/// How large the arena may be.
struct Budget {
  enum class Kind { None, Bytes, Percent, Least } kind = Kind::None;
  int64_t bytes = 0;
  double percent = 0; ///< Of the arena without recomputing.
};

/// "" is none. The error says what is allowed.
llvm::Expected<Budget> parseBudget(llvm::StringRef text);

/// What decides what runs again.
struct Policy {
  enum class Kind { Auto, None, EveryN, Sqrt, Selective, Names } kind = Kind::Auto;
  int count = 0;                  ///< Of EveryN: operators.
  std::vector<std::string> globs; ///< Of Names.
};

llvm::Expected<Policy> parsePolicy(llvm::StringRef text);

/// "1.50 MiB", for people.
std::string formatBytes(int64_t bytes);

} // namespace recast::checkpoint
