#include "ir/train/Bodies.h"

using namespace mlir;
namespace recast::train {

LogicalResult buildBody(onnx_ir::Node op, onnx_ir::NodeBuilder &b, ArrayRef<Value> inputs,
                        SmallVectorImpl<Value> &outputs) {
  for (ArrayRef<BodyEntry> table :
       {convolutionBodies(), gradientBodies(), stepBodies(), optimizerBodies(), precisionBodies(), fp8Bodies()})
    for (const BodyEntry &entry : table)
      if (entry.op == op.opType())
        return entry.build(op, b, inputs, outputs);
  return op->emitError() << "node " << op.describe() << " has no body in standard operators";
}

} // namespace recast::train
