// Builds a FlowGraph operator by operator. Internal to BuildFlow and the files of operator families.
#pragma once
#include "ir/onnx/Builder.h"
#include "passes/verify/FlowGraph.h"

namespace recast::verify {

class FlowBuilder {
public:
  /// Bodies of functions and operators are put into the module.
  FlowBuilder(mlir::ModuleOp module, FlowGraph &flow);

  void buildGraph();

  // --- For operator families ---
  using Ids = llvm::ArrayRef<ValueId>;
  ValueId of(mlir::Value value);                   ///< kNone where the operand is left out.
  ValueId operand(onnx_ir::Node node, unsigned i); ///< The same.
  void set(mlir::Value result, ValueId value);     ///< Typed as `result` where it has no type yet.
  /// A node of the operator being visited; `mains` go before `sides`. Operands that are left out are dropped.
  ValueId add(Kind kind, Ids mains, Ids sides = {}, uint16_t flags = 0);
  /// The same, typed as `result` and bound to it.
  ValueId bind(mlir::Value result, Kind kind, Ids mains, Ids sides = {}, uint16_t flags = 0);
  FlowNode &at(ValueId value) { return flow.nodes[value]; }
  ValueId constant(double number);
  ValueId anyNumber() { return constant(std::numeric_limits<double>::quiet_NaN()); }
  void namesScale(ValueId scale) { flow.scales.push_back(scale); }
  /// An operator overwrites `target` by `value`; a buffer is only added to.
  void overwrites(ValueId target, ValueId value, bool isBuffer = false);
  ValueId select(ValueId condition, ValueId ifTrue, ValueId ifFalse);
  ValueId product(ValueId a, ValueId b) { return add(Kind::Product, {a, b}, {}, FlowNode::Elementwise); }
  ValueId quotient(ValueId a, ValueId b) { return add(Kind::Quotient, {a, b}, {}, FlowNode::Elementwise); }
  ValueId sum(Ids terms, bool subtract = false);
  /// Some function of scalars.
  ValueId factor(Ids numbers) {
    return numbers.empty() ? anyNumber() : add(Kind::Nonlinear, numbers, {}, FlowNode::Elementwise);
  }
  ValueId power(ValueId x, float exponent);

  void visitBody(mlir::Block &block); ///< All operations but the terminator.

private:
  void visit(mlir::Operation *op);
  bool visitCall(onnx_ir::Node node);
  void visitIf(onnx_ir::Node node);
  void visitScan(onnx_ir::Node node);
  void visitLoop(onnx_ir::Node node);
  bool visitByBody(onnx_ir::Node node); ///< Operators of dialect train without a rule: by their standard bodies.
  void visitAdded(mlir::Operation *oldFront, mlir::Operation *before, mlir::Operation *after);
  ValueId carry(mlir::BlockArgument argument, ValueId initial);
  void leaveLoop(onnx_ir::Node node, int loop, unsigned numCarried, Ids carried, mlir::ValueRange nexts, Ids initials);
  int enterLoop();

  FlowGraph &flow;
  onnx_ir::NameScope names;
  onnx_ir::TypeInference types;
  onnx_ir::NodeBuilder bodies; ///< Builds what the functions and operators of dialect train stand for.
  mlir::Block *top;            ///< Of the main graph.
  llvm::DenseMap<mlir::Value, ValueId> values;
  mlir::Operation *current = nullptr; ///< The operator being visited.
  unsigned made = 0;                  ///< Nodes made for it.
  uint64_t currentSignature = 0;
  int loop = -1, numLoops = 0;
  llvm::SmallVector<int> loopParents;
  std::string path;                           ///< The calls being visited, for reports.
  llvm::DenseMap<ValueId, std::string> paths; ///< Values made inside a call, with its path.
};

/// Sets kind, element and size from a type.
void setType(FlowNode &node, mlir::Type type);

// Each returns false where the family has no such operator.
bool addStandard(FlowBuilder &b, onnx_ir::Node node);  ///< Domain "" and ai.onnx.preview.training.
bool addTrain(FlowBuilder &b, onnx_ir::Node node);     ///< Dialect train.
bool addMicrosoft(FlowBuilder &b, onnx_ir::Node node); ///< com.microsoft and what ONNX Runtime Training writes besides.

/// Formulas of optimizers that more than one family has. Null parts are kNone. `skip` may be kNone.
struct Adam {
  ValueId param, grad, first, second, skip = kNone;
  ValueId most = kNone;                 ///< The largest second moment so far.
  llvm::ArrayRef<ValueId> numbers = {}; ///< That the update is scaled by: rates, counts of steps.
  bool skipIfFalse = false;
  bool decaysGradient = false;
};
struct AdamResult {
  ValueId param, first, second, most = kNone;
};
AdamResult addAdam(FlowBuilder &b, const Adam &adam);

} // namespace recast::verify
