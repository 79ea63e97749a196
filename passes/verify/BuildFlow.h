// From a module to the graph that the rules walk.
#pragma once
#include "ir/onnx/Dialect.h"
#include "passes/verify/FlowGraph.h"
#include <memory>

namespace recast::verify {

/// Flattens the model's graph: bodies of If, Loop and Scan and local functions in place, operators of dialect train and
/// of ONNX Runtime Training as the sums and products that they are. The module is left as it was.
std::unique_ptr<FlowGraph> buildFlow(mlir::ModuleOp module);

/// Sums that choose by products with 0 and 1 become selections. A part of buildFlow, in a file of its own.
void findArithmeticChoices(FlowGraph &flow);

} // namespace recast::verify
