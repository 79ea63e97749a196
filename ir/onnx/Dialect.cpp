#include "ir/onnx/Dialect.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recast::onnx_ir;

#include "ir/onnx/OnnxDialect.cpp.inc"
#include "ir/onnx/OnnxInterfaces.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "ir/onnx/OnnxTypes.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "ir/onnx/OnnxAttributes.cpp.inc"

void ONNXDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "ir/onnx/OnnxTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "ir/onnx/OnnxAttributes.cpp.inc"
      >();
  registerOperations();
}
