// Types inside model-local functions, which files do not state: from the calls.
#pragma once
#include "ir/onnx/Node.h"

namespace recast::precision {

/// A function whose body has types: those that every call gives.
struct TypedFunction {
  onnx_ir::FunctionOp function;
  std::string problem; ///< Not empty where the body has no types, and why.
};

/// The functions that the graph calls, directly or from other functions, callers before callees. Their arguments and
/// bodies get types, and so do the results of the calls and what depends on them.
std::vector<TypedFunction> typeCalledFunctions(onnx_ir::GraphOp graph);

} // namespace recast::precision
