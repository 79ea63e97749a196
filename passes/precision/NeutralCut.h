// Which nodes that may run in either type should run in the low one: the choice that moves the fewest bytes through
// casts. A minimum cut; plain structs, no IR.
#pragma once
#include "llvm/ADT/STLFunctionalExtras.h"
#include <cstdint>
#include <vector>

namespace recast::precision {

/// A side of the cut, where a variable could stand: values that are low or wide whatever is chosen, and readers that
/// need one of both.
inline constexpr int kLow = -1, kWide = -2;

/// Variables are numbered from 0. Each is low or wide.
struct CutProblem {
  struct Value {
    int producer = kWide;          ///< A variable or a side.
    int64_t bytes = 0;             ///< What one cast of the value moves, in either direction.
    std::vector<int> readers = {}; ///< Variables and sides, repeated or not.
  };
  struct Rule {
    int variable; ///< May be low only if
    int producer; ///< this variable or side is.
  };

  int numVariables = 0;
  std::vector<Value> values;
  std::vector<Rule> rules;

  int addVariable() { return numVariables++; }
};

/// A value is cast once for each type in which it is read and not produced.
struct CutSolution {
  std::vector<bool> isLow; ///< For each variable.
  int64_t bytes = 0;       ///< Moved by all casts.
  int64_t casts = 0;
};

/// What is asked, in the order of the variables, where both types cost the same. The answers so far are in `isLow`.
using CutPreference = llvm::function_ref<bool(int variable, const std::vector<bool> &isLow)>;

/// The fewest bytes, then the fewest casts, then what `prefersLow` says. Components that share no variable are solved
/// apart: a chain of n nodes takes time linear in n.
CutSolution solveCut(const CutProblem &problem, CutPreference prefersLow);

/// The bytes and casts of a given assignment. Precondition: it obeys the rules.
CutSolution evaluateCut(const CutProblem &problem, std::vector<bool> isLow);
/// True where no rule is broken.
bool obeysRules(const CutProblem &problem, const std::vector<bool> &isLow);

} // namespace recast::precision
