// What the values of a training graph are for: found by how values flow, not by what they are called.
#pragma once
#include "passes/verify/FlowGraph.h"

namespace recast::verify {

/// Pairs graph inputs and initializers with the outputs that are their new values: `flow.states` as the file records
/// them, in-place updates, names (`w` and `w.next`, `new_w`, ...), and last outputs that are computed element by
/// element from a source of the same type, the nearest first.
std::vector<State> findStates(const FlowGraph &flow);

/// Values visited backward from `from`, itself included, through operands of nodes that `enters` admits.
std::vector<ValueId> walkBack(const FlowGraph &flow, llvm::ArrayRef<ValueId> from,
                              llvm::function_ref<void(ValueId, llvm::function_ref<void(ValueId)>)> enters);

/// True where `next` is the value of `input`, possibly decayed, plus something that depends on the batch. `sums`, if
/// given, gets the additions on the way.
bool isAdditive(const FlowGraph &flow, const std::vector<char> &dependsOnBatch, ValueId input, ValueId next,
                std::vector<ValueId> *sums = nullptr);

/// Values that others are computed from element by element, those themselves included.
std::vector<ValueId> updateRegion(const FlowGraph &flow, llvm::ArrayRef<ValueId> values);

struct Roles {
  std::vector<State> parameters;
  std::vector<State> moments;
  std::vector<State> statistics;     ///< Other floating-point state that depends on the batch: running statistics.
  std::vector<State> kept;           ///< Other state that must be as it was after a step that is skipped.
  std::vector<NamedValue> gradients; ///< Where the model updates nothing: outputs that are gradients of parameters.
  std::vector<NamedValue> buffers;   ///< In-place sums of gradients.
  std::vector<ValueId> losses;
  std::vector<ValueId> scales;      ///< The loss scale: one value, more where several are multiplied.
  std::vector<ValueId> newScales;   ///< What they are in the next step, where a test of gradients decides it.
  std::vector<char> dependsOnBatch; ///< For each value, conditions left out.
  std::vector<char> carriesBatch;   ///< The same, but for numbers made from booleans.
  std::vector<char> feedsLoss;      ///< For each value: the loss is computed from it.
  std::vector<char> reachesUpdate;  ///< For each value: enters a new parameter, a moment or a gradient output.
  std::vector<char> decidesUpdate;  ///< The same, or is a condition of one.
  std::vector<char> dependsOnTest;  ///< For each value: depends on a test or comparison of batch-dependent values.

  /// Values that end the walk of a gradient: new parameters and moments, gradient outputs, buffers.
  std::vector<NamedValue> sinks() const;
};

Roles findRoles(const FlowGraph &flow, llvm::ArrayRef<State> states);

/// Those scalar inputs, constants and states that scale the loss.
std::vector<ValueId> findScales(const FlowGraph &flow, const Roles &roles, llvm::ArrayRef<State> states);

} // namespace recast::verify
