// The cost of a plan's step: the runtime's view of an operator, as ir/cost sees it.
#pragma once
#include "ir/cost/Cost.h"
#include "runtime/plan/Plan.h"

namespace recast::tools {

struct StepCost {
  std::string name; ///< As cost::operatorName.
  cost::Cost cost;
};

/// Of a step without bodies.
StepCost costOfStep(mlir::MLIRContext &context, const Step &step);

} // namespace recast::tools
