// A view of an operation as an ONNX node, and the names of values.
#pragma once
#include "ir/onnx/Dialect.h"
#include "ir/onnx/Types.h"
#include "onnx/defs/schema.h"

namespace recast::onnx_ir {

/// True for operations that stand for a NodeProto (of dialect onnx or train).
bool isNode(mlir::Operation *op);

/// A light handle; copies refer to the same operation.
class Node {
public:
  Node(mlir::Operation *op) : op(op) {}
  mlir::Operation *operation() const { return op; }
  mlir::Operation *operator->() const { return op; }

  llvm::StringRef opType() const;
  llvm::StringRef domain() const; ///< "" for ONNX's default domain, "recast" for dialect train.
  llvm::StringRef name() const;   ///< The node's name; may be empty.
  /// For diagnostics: the node's name, or that of its first named output, in quotes with its operator.
  std::string describe() const;
  bool is(llvm::StringRef type) const { return domain().empty() && opType() == type; }

  unsigned numInputs() const { return op->getNumOperands(); }
  unsigned numOutputs() const { return op->getNumResults(); }
  /// Null where the input is left out or beyond the last.
  mlir::Value input(unsigned i) const {
    return i < op->getNumOperands() && !isAbsent(op->getOperand(i)) ? op->getOperand(i) : mlir::Value();
  }
  mlir::Value output(unsigned i = 0) const { return op->getResult(i); }
  /// The output where it exists, is named and has a use.
  mlir::Value usedOutput(unsigned i) const {
    return i < op->getNumResults() && !op->getResult(i).use_empty() ? op->getResult(i) : mlir::Value();
  }

  bool hasAttr(llvm::StringRef name) const { return op->hasAttr(name); }
  int64_t getInt(llvm::StringRef name, int64_t fallback) const;
  /// The number that the float stands for (IntendedValue.h); it rounds to the float again.
  double getFloat(llvm::StringRef name, double fallback) const;
  llvm::StringRef getString(llvm::StringRef name, llvm::StringRef fallback) const;
  std::optional<llvm::SmallVector<int64_t>> getInts(llvm::StringRef name) const;

  int64_t opset() const; ///< The version that the model (or the enclosing function) imports for the node's domain.
  const onnx::OpSchema *schema() const; ///< Null for other domains.
  int64_t sinceVersion() const;         ///< The schema's; 1 without one.

private:
  mlir::Operation *op;
};

/// The version imported for `domain` where `op` stands; 0 if the domain is not imported.
int64_t opsetVersion(mlir::Operation *op, llvm::StringRef domain);
/// "ai.onnx" is another name of "".
inline llvm::StringRef normalDomain(llvm::StringRef domain) { return domain == "ai.onnx" ? "" : domain; }

// --- Names. Results carry them in `onnx.outputs`, block arguments in the info of their graph. ---

/// The ONNX name of a value; "" where it has none yet.
llvm::StringRef nameOf(mlir::Value value);
void setName(mlir::Value value, llvm::StringRef name);

/// The info dictionary of the graph whose body `region` is: names of inputs and outputs and what the file keeps.
mlir::DictionaryAttr graphInfo(mlir::Region &region);
void setGraphInfo(mlir::Region &region, mlir::DictionaryAttr info);
/// `dict` with one entry replaced, or removed where `value` is null.
mlir::DictionaryAttr withEntry(mlir::DictionaryAttr dict, llvm::StringRef key, mlir::Attribute value);
llvm::SmallVector<llvm::StringRef> stringsIn(mlir::DictionaryAttr dict, llvm::StringRef key);
mlir::ArrayAttr stringArray(mlir::MLIRContext *context, llvm::ArrayRef<llvm::StringRef> strings);

/// The only onnx.graph of a module; null if there is none.
GraphOp mainGraph(mlir::ModuleOp module);
/// Drops what the file said about types (value_info, declared types of outputs): for passes that change types or
/// values.
void forgetDeclaredTypes(GraphOp graph);

/// metadata_props of the model.
std::string getMetadata(mlir::ModuleOp module, llvm::StringRef key);
void setMetadata(mlir::ModuleOp module, llvm::StringRef key, llvm::StringRef value);

} // namespace recast::onnx_ir
