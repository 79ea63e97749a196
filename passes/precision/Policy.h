// Which operators run in the low type: rules from a YAML file, then those of a preset.
#pragma once
#include "ir/onnx/Node.h"
#include "llvm/Support/Error.h"
#include <optional>
#include <string>
#include <vector>

namespace recast::precision {

/// Bounds of values, both included.
struct ValueRange {
  double low, high;
  /// True where numbers of the range stay finite in `type`.
  bool fits(mlir::Type type) const;
};

/// One line of a policy. A rule matches a node when every part that it states matches.
struct Rule {
  std::string op;   ///< Operator of ONNX's default domain, or train.<operator>; empty: any.
  std::string name; ///< Glob on the node's name, or that of its first output where it has none; empty: any.
  std::vector<int64_t> versions; ///< First and last version of the operator, both included; empty: any.
  int64_t rank = -1;             ///< Of the first input; -1: any.
  /// Of the node's results. Where the low type cannot hold it the node runs in f32, whatever `autocast` says.
  std::optional<ValueRange> range;
  /// Nothing: the rule is about the range alone, and where that fits the next rule decides.
  std::optional<onnx_ir::AutocastClass> autocast;
  /// Constants beyond the low type's range become its largest number instead of keeping the node in f32.
  bool saturates = false;
  std::string source; ///< "cuda.yaml:12"

  bool matches(onnx_ir::Node node) const;
};

/// What is known about tensors, by name.
struct TensorRange {
  std::string tensor; ///< Glob.
  ValueRange range;
  std::string source;
};

/// What a policy says about a node.
struct Ruling {
  onnx_ir::AutocastClass autocast;
  llvm::StringRef source;
  bool saturates = false;
  bool exceedsRange = false; ///< The class is Fp32 because of the rule's range.
};

class Policy {
public:
  /// Rules for the low type `low` ("bf16", "f16" or "tf32"). `choice` is "cuda" or "" (PyTorch's lists for CUDA), "cpu"
  /// (its lists for CPU), or a file, whose rules go in front of the lists that its `base` names. Errors name file and
  /// line.
  static llvm::Expected<Policy> load(llvm::StringRef low, llvm::StringRef choice);

  /// The class that the first matching rule of the file gives that states a name.
  std::optional<onnx_ir::AutocastClass> findNamed(onnx_ir::Node node) const;
  /// What the first matching rule gives; nothing where no rule matches. `low` is the low type.
  std::optional<Ruling> find(onnx_ir::Node node, mlir::Type low);
  /// The section `ranges`: nothing where no entry matches.
  const TensorRange *rangeOf(llvm::StringRef tensor);
  bool hasRanges() const { return !ranges.empty(); }
  /// Globs of the file that have decided no node and no tensor so far: most likely spelling mistakes.
  std::vector<std::string> unusedNames() const;

private:
  std::vector<Rule> rules;
  std::vector<TensorRange> ranges;
  std::vector<bool> used;       ///< For each rule of the file.
  std::vector<bool> usedRanges; ///< For each range.
};

} // namespace recast::precision
