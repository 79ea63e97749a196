// What operators ask of their operands' shapes and types beside what the ONNX library's inference checks.
#pragma once
#include "ir/onnx/Node.h"
#include <string>

namespace recast::onnx_ir {

/// What is wrong with the operands of `node`, as far as their types are known; "" where nothing is.
std::string problemWithOperands(Node node);

/// The same for operands whose types the schema ties together (T of Add), for models that come from outside.
std::string problemWithTypes(Node node);

} // namespace recast::onnx_ir
