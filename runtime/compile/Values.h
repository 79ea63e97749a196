// What the compiler knows of MLIR values in the runtime's terms: static types, and the bytes of constants.
#pragma once
#include "ir/onnx/TensorData.h"
#include "runtime/plan/Plan.h"
#include "llvm/ADT/DenseMap.h"
#include <unordered_map>

namespace recast::compile {

struct Constant {
  TensorType type;
  Data data; ///< Aligned to the element; never null, even without elements.
};

/// Memory of its own, aligned to 64 bytes; `bytes` may be 0.
std::shared_ptr<std::byte> allocate(size_t bytes);

class Values {
public:
  /// `model` keeps the tensors of attributes alive; constants that are views share it.
  explicit Values(std::shared_ptr<const void> model) : model(std::move(model)) {}

  /// Undefined where the runtime has no such type (or `element` is null).
  DType dtypeOf(mlir::Type element);
  /// Sets `type` to the value's type (absent where the value is). Else says why there is none: the shape depends on
  /// data, the element type is none of the runtime's, ...
  std::string typeOf(mlir::Value value, TensorType &type);
  /// True where the type has a rank and fixed sizes that memory can hold, over an element type of the runtime.
  bool isStatic(mlir::Value value) {
    TensorType type;
    return typeOf(value, type).empty() && type.present();
  }

  /// The data of an initializer, a Constant node or a folded value; null for all others. Valid until `forget`.
  const Constant *constant(mlir::Value value);
  /// Declares that a value is folded: its operation never runs.
  void setConstant(mlir::Value value, Constant constant) { constants[key(value)] = std::move(constant); }
  /// The bytes of a dense tensor: a view where it is large and aligned, else a copy. Null bytes where it is not dense.
  Data dataOf(onnx_ir::TensorAttr tensor);
  /// Must be called before an operation is erased.
  void forget(mlir::Operation *op) {
    for (mlir::Value result : op->getResults())
      constants.erase(key(result));
  }

private:
  static const void *key(mlir::Value value) { return value.getAsOpaquePointer(); }
  std::shared_ptr<const void> model;
  llvm::DenseMap<mlir::Type, DType> dtypes;
  std::unordered_map<const void *, Constant> constants;
};

} // namespace recast::compile
