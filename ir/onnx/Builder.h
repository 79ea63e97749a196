// Builds ONNX nodes at the opset of the model, with types inferred and names that do not collide.
#pragma once
#include "ir/onnx/TensorData.h"
#include "ir/onnx/TypeInference.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"

namespace recast::onnx_ir {

/// The names taken in one graph, bodies included.
class NameScope {
public:
  explicit NameScope(mlir::Operation *graph);
  /// `hint`, or `hint_1`, `hint_2`, ... where it is taken; taken from now on.
  mlir::StringAttr uniqueAttr(llvm::StringRef hint);
  std::string unique(llvm::StringRef hint) { return uniqueAttr(hint).str(); }
  bool taken(llvm::StringRef name) const { return names.contains(mlir::StringAttr::get(context, name)); }

private:
  mlir::MLIRContext *context;
  llvm::DenseSet<mlir::Attribute> names; ///< Strings as attributes: what the graph holds already, without copies.
  llvm::StringMap<unsigned> next;        ///< The last number given to a hint that is taken.
};

/// Helpers choose the form that the opset has (axes as attribute or as input, ...). Values may be null only where said.
class NodeBuilder {
public:
  /// Builds into the graph or function that holds `anchor` (a GraphOp, a FunctionOp or an operation inside one).
  NodeBuilder(mlir::Operation *anchor, NameScope &names, TypeInference &types);

  mlir::OpBuilder &rewriter() { return builder; }
  mlir::MLIRContext *context() { return builder.getContext(); }
  TypeInference &inference() { return types; }
  int64_t opset() const { return opsetOfDefaultDomain; }
  /// True once an inference error was reported.
  bool failed() const { return sawFailure; }

  void before(mlir::Operation *op) { builder.setInsertionPoint(op); }
  void after(mlir::Operation *op) { builder.setInsertionPointAfter(op); }
  /// New values are called `<scope>/<operator>`; new nodes get the scope as their location.
  void setScope(llvm::StringRef scope);

  using Attrs = llvm::ArrayRef<mlir::NamedAttribute>;
  mlir::NamedAttribute attr(llvm::StringRef name, int64_t value) {
    return builder.getNamedAttr(name, builder.getI64IntegerAttr(value));
  }
  mlir::NamedAttribute attr(llvm::StringRef name, double value) {
    return builder.getNamedAttr(name, builder.getF32FloatAttr(static_cast<float>(value)));
  }
  mlir::NamedAttribute attr(llvm::StringRef name, llvm::StringRef value) {
    return builder.getNamedAttr(name, builder.getStringAttr(value));
  }
  mlir::NamedAttribute attr(llvm::StringRef name, llvm::ArrayRef<int64_t> value) {
    return builder.getNamedAttr(name, builder.getDenseI64ArrayAttr(value));
  }

  /// A node of the default domain ("Add") or of dialect train ("train.adamw"); null inputs are left out.
  mlir::Operation *node(llvm::StringRef op, mlir::ValueRange inputs, unsigned numOutputs, Attrs attrs = {});
  mlir::Value node(llvm::StringRef op, mlir::ValueRange inputs, Attrs attrs = {}) {
    return node(op, inputs, 1, attrs)->getResult(0);
  }
  /// Gives new names to the results of an operation that was copied from elsewhere.
  void adopt(mlir::Operation *copied);
  /// The value that stands for an input that is left out.
  mlir::Value absent();

  // --- Constants: one node for each value and type. ---
  mlir::Value constant(TensorAttr tensor);
  mlir::Value scalar(mlir::Type elementType, double value);
  /// A 0-d tensor of x's element type.
  mlir::Value scalarLike(mlir::Value x, double value) { return scalar(elementTypeOf(x), value); }
  mlir::Value ints(llvm::ArrayRef<int64_t> values);
  mlir::Value intScalar(int64_t value);

  // --- Element-wise ---
  mlir::Value add(mlir::Value a, mlir::Value b) { return node("Add", {a, b}); }
  mlir::Value sub(mlir::Value a, mlir::Value b) { return node("Sub", {a, b}); }
  mlir::Value mul(mlir::Value a, mlir::Value b) { return node("Mul", {a, b}); }
  mlir::Value div(mlir::Value a, mlir::Value b) { return node("Div", {a, b}); }
  mlir::Value neg(mlir::Value a) { return node("Neg", {a}); }
  mlir::Value square(mlir::Value a) { return node("Mul", {a, a}); }
  mlir::Value mulScalar(mlir::Value a, double s) { return node("Mul", {a, scalarLike(a, s)}); }
  mlir::Value addScalar(mlir::Value a, double s) { return node("Add", {a, scalarLike(a, s)}); }
  /// Below opset 16, which brought bf16 to Where, bf16 goes through f32.
  mlir::Value where(mlir::Value condition, mlir::Value a, mlir::Value b);
  /// No node where the type is already right.
  mlir::Value cast(mlir::Value x, mlir::Type elementType);
  mlir::Value castLike(mlir::Value x, mlir::Value like) { return cast(x, elementTypeOf(like)); }
  /// "Greater", "GreaterOrEqual", ...: below opset 16 those with OrEqual are composed, and true for NaN.
  mlir::Value compare(llvm::StringRef op, mlir::Value a, mlir::Value b);

  // --- Shapes ---
  /// Shape(x); a constant where x is static.
  mlir::Value shapeOf(mlir::Value x);
  mlir::Value reshape(mlir::Value x, mlir::Value shape);
  mlir::Value reshape(mlir::Value x, llvm::ArrayRef<int64_t> shape) { return reshape(x, ints(shape)); }
  mlir::Value reshapeLike(mlir::Value x, mlir::Value like) { return reshape(x, shapeOf(like)); }
  mlir::Value transpose(mlir::Value x, llvm::ArrayRef<int64_t> perm) {
    return node("Transpose", {x}, attr("perm", perm));
  }
  /// Swaps the last two axes.
  mlir::Value matrixTranspose(mlir::Value x);
  mlir::Value unsqueeze(mlir::Value x, llvm::ArrayRef<int64_t> axes);
  mlir::Value squeeze(mlir::Value x, llvm::ArrayRef<int64_t> axes);
  mlir::Value expand(mlir::Value x, mlir::Value shape) { return node("Expand", {x, shape}); }
  mlir::Value slice(mlir::Value x, llvm::ArrayRef<int64_t> starts, llvm::ArrayRef<int64_t> ends,
                    llvm::ArrayRef<int64_t> axes);
  mlir::Value concat(mlir::ValueRange parts, int64_t axis) { return node("Concat", parts, attr("axis", axis)); }
  /// A tensor of `shape` filled with `value`.
  mlir::Value filled(mlir::Value shape, mlir::Type elementType, double value);
  mlir::Value zerosLike(mlir::Value x);

  // --- Reductions: `op` is "ReduceSum", "ReduceMax", ...; no axes means all. ---
  mlir::Value reduce(llvm::StringRef op, mlir::Value x, llvm::ArrayRef<int64_t> axes, bool keepDims);
  mlir::Value sum(mlir::Value x, llvm::ArrayRef<int64_t> axes, bool keepDims) {
    return reduce("ReduceSum", x, axes, keepDims);
  }

private:
  mlir::Block *block; ///< Of the graph or function: constants go to its start.
  mlir::OpBuilder builder;
  NameScope &names;
  TypeInference &types;
  int64_t opsetOfDefaultDomain;
  std::string scope;
  mlir::Location location; ///< Of new nodes.
  mlir::StringAttr outputsKey, nameKey;
  bool sawFailure = false;
  mlir::Value absentValue;
  llvm::DenseMap<mlir::Attribute, mlir::Value> constants;
};

} // namespace recast::onnx_ir
