#include "ir/train/Dialect.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace recast;
using namespace recast::train;

#include "ir/train/TrainDialect.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "ir/train/TrainTypes.cpp.inc"
#define GET_OP_CLASSES
#include "ir/train/TrainOps.cpp.inc"

void TrainDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "ir/train/TrainTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "ir/train/TrainOps.cpp.inc"
      >();
}

bool train::isTrainOp(MLIRContext *context, StringRef op) {
  return OperationName(("train." + op).str(), context).isRegistered();
}
