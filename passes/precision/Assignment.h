// Decides the type of every node of a graph, bodies of control flow included, without changing anything.
#pragma once
#include "passes/precision/NeutralCut.h"
#include "passes/precision/OperandGroups.h"
#include "passes/precision/Policy.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

namespace recast::precision {

/// A side where nothing is decided: the operand or node is left alone.
inline constexpr int kOpen = -3;

/// What is decided about one operation.
struct Choice {
  std::optional<onnx_ir::AutocastClass> autocast; ///< Nothing: not looked into, gets the types that it had.
  llvm::StringRef rule;                           ///< "cuda.yaml:12"; empty where the operator's own class holds.
  int side = kOpen;                               ///< What it runs in: a side or a variable of the cut.
  std::string reason = {};                        ///< Why it runs in f32 although its class would allow the low type.
  llvm::SmallVector<std::pair<unsigned, int>, 3> wants = {}; ///< Operands, and the side that each is read in.
};

/// Classes, constants and the schemas fix most nodes. What remains free goes where the fewest bytes pass through casts,
/// and where that leaves a choice, where its inputs are, as in PyTorch. A value counts once for each type in which it
/// is read; a cast that the graph has already counts as the value in another type where it widens (which is exact), and
/// as a reader and a value of its own where it rounds.
class Assignment {
public:
  /// `holder` is a graph or a function with typed arguments.
  /// `train`: globs of what is trained beside what looks like a parameter.
  Assignment(mlir::Operation *holder, Policy &policy, mlir::Type low, llvm::ArrayRef<std::string> train = {});
  void run();

  /// Null for operations that stand for no node.
  const Choice *find(mlir::Operation *op) const;
  /// The low type, f32, or null for kOpen.
  mlir::Type typeOf(int side) const;
  /// The type that `op` must read its operand in; null where it is left as it is.
  mlir::Type wanted(mlir::Operation *op, unsigned operand) const;
  /// The element type that a value has when all is done; null where no f32 or low value is known.
  mlir::Type typeOf(mlir::Value value) const;
  /// True for initializers that training may change, also where casts stand between: no number takes their place.
  bool mayTrain(mlir::Value value) const;
  /// True for constants that a rule saturates in the low type.
  bool saturates(mlir::Value constant) const { return saturatedConstants.contains(constant); }

  /// One line a tensor that kept nodes in f32, or was saturated.
  llvm::ArrayRef<std::string> remarks() const { return lines; }
  /// Operators of class low that the schema refuses in the low type, and how often.
  const llvm::MapVector<llvm::StringRef, unsigned> &refused() const { return refusals; }
  /// True where the graph has casts between f32 and the low type.
  bool hasOwnCasts() const { return sawCast; }

private:
  using Groups = llvm::SmallVector<OperandGroup>;

  void visitBlock(mlir::Block &block, int64_t repeats);
  void visit(mlir::Operation *op, int64_t repeats);
  void visitCast(mlir::Operation *op);
  void visitControlFlow(mlir::Operation *op, int64_t repeats);
  void visitLoop(mlir::Operation *op, int64_t repeats);
  void visitNode(onnx_ir::Node node);
  void leave(mlir::Operation *op);
  void decide(onnx_ir::Node node, Choice &choice, const Groups &groups, bool saturates);
  void addFree(onnx_ir::Node node, Choice &choice, const Groups &groups);
  void defineResults(onnx_ir::Node node, const Choice &choice, const Groups &groups);
  Groups groupsOf(onnx_ir::Node node) const;
  std::string blockedBy(onnx_ir::Node node, const Choice &choice, const Groups &groups, bool saturates);
  bool yields(onnx_ir::Node node, unsigned operand, onnx_ir::AutocastClass autocast) const;
  bool isBias(onnx_ir::Node node, unsigned operand) const;

  bool isOurs(mlir::Value value) const;
  int currentSide(mlir::Value value) const;
  /// The value whose widening `value` is, else itself.
  mlir::Value rootOf(mlir::Value value) const;
  /// Where a value is as it stands in the graph: a side or the variable that produces it.
  int sideOf(mlir::Value value) const;
  void define(mlir::Value value, int side, int64_t repeats);
  void read(mlir::Operation *op, unsigned operand, int side);
  /// Free; where both types cost the same it is low if all of `values` are.
  int addVariable(llvm::SmallVector<mlir::Value, 2> values);
  void writeRemarks();

  mlir::Operation *holder;
  Policy &policy;
  mlir::Type low, f32;
  llvm::ArrayRef<std::string> train;
  bool sawCast = false;
  int64_t repeatsNow = 1; ///< How often the block that is visited runs, roughly.

  CutProblem problem;
  CutSolution solved;
  llvm::DenseMap<mlir::Value, int> valueIndex;              ///< Into problem.values.
  std::vector<llvm::SmallVector<mlir::Value, 2>> preferred; ///< For each variable: it is as these are.
  llvm::DenseMap<mlir::Operation *, Choice> choices;
  llvm::DenseSet<mlir::Value> beyondLow, saturatedConstants;
  /// A tensor that keeps a node in f32, or that saturates where the node is low.
  struct Blocked {
    mlir::Operation *op;
    mlir::Value tensor;
    std::string text;
  };
  std::vector<Blocked> blocked, saturations;
  std::vector<std::string> lines;
  llvm::MapVector<llvm::StringRef, unsigned> refusals;
};

/// "f32", "f16", "bf16".
llvm::StringRef labelOf(mlir::Type type);

} // namespace recast::precision
