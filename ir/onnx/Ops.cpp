// Definitions of the operations: their own file, since the generated code takes most of the library's compile time.
#include "ir/onnx/Dialect.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace recast::onnx_ir;

void ONNXDialect::registerOperations() {
  addOperations<
#define GET_OP_LIST
#include "ir/onnx/OnnxOps.cpp.inc"
      >();
}

LogicalResult NodeGenericOp::verify() {
  if (!(*this)->getAttrOfType<StringAttr>("onnx.op_type"))
    return emitOpError("needs the attribute onnx.op_type");
  return success();
}

#define GET_OP_CLASSES
#include "ir/onnx/OnnxOps.cpp.inc"
