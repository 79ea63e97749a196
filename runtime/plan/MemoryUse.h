// What a plan's memory is used for: for people and tools that explain it. Bytes of the arena count as the planner
// counts them, rounded up to its alignment.
#pragma once
#include "runtime/plan/Plan.h"

namespace recast {

/// The steps during which a buffer's memory holds its value: from the step that writes it to the last that reads it,
/// both included; views count as the buffer itself. A buffer whose memory the last reader takes over ends before that.
/// `last` is the number of steps for outputs of the plan.
struct Lifetime {
  int first = -1, last = -1;
};

/// One a buffer; {-1, -1} for those that have no memory of their own in the arena or on the host.
std::vector<Lifetime> lifetimes(const Plan &plan);

/// Something in the arena.
struct Holder {
  enum Kind : uint8_t { Value, Output, Workspace } kind = Value;
  std::string name; ///< Of the buffer, or of the step whose workspace it is.
  size_t bytes = 0, offset = 0;
  Lifetime life;
};

/// What a plan uses, or a body of one: then the arena is the workspace of the step around it, and the rest is 0.
struct MemoryUse {
  size_t stateBytes = 0; ///< Parameters, moments and other state.
  size_t inputBytes = 0, constantBytes = 0, arenaBytes = 0;
  size_t hostBytes = 0;          ///< Of the host's memory; of a body, within that of the plan around it.
  std::vector<size_t> liveBytes; ///< Of the arena, one a step.
  int fullest = -1;              ///< The first step with the most live bytes; -1: no step.
  /// The arena at that step; together arenaBytes. Values are activations and gradients; lost is what lies between.
  size_t valueBytes = 0, outputBytes = 0, workspaceBytes = 0, lostBytes = 0;
  std::vector<Holder> holders; ///< Of that step, the largest first.
  std::vector<MemoryUse> bodies;
  int step = -1; ///< Of a body: the step of the plan around it.
};

MemoryUse memoryUse(const Plan &plan);

/// What the steps that come from one operator of the model need.
struct OriginFacts {
  /// The most at one time beside operands and results: workspace, and values between its steps.
  size_t workspaceBytes = 0;
  /// Results, and the operands whose memory they may take over where nothing reads those later; by names.
  std::vector<std::pair<std::string, std::string>> inPlace;
};

/// By Step::origin, bodies included. An operator that is not there needs no step.
std::map<std::string, OriginFacts> originFacts(const Plan &plan);

} // namespace recast
