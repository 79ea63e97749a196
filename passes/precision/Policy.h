// Which operators run in the low type: rules from a YAML file, then those of a preset.
#pragma once
#include "ir/onnx/Node.h"
#include "llvm/Support/Error.h"
#include <optional>
#include <string>
#include <vector>

namespace recast::precision {

/// One line of a policy. A rule matches a node when every part that it states matches.
struct Rule {
  std::string op;   ///< Operator of ONNX's default domain; empty: any.
  std::string name; ///< Glob on the node's name, or that of its first output where it has none; empty: any.
  std::vector<int64_t> versions; ///< First and last version of the operator, both included; empty: any.
  onnx_ir::AutocastClass autocast = onnx_ir::AutocastClass::Never;

  bool matches(onnx_ir::Node node) const;
};

class Policy {
public:
  /// The preset `low` ("bf16" or "f16"), with the rules of the file `path` (if any) in front. Errors name file and
  /// line.
  static llvm::Expected<Policy> load(llvm::StringRef low, llvm::StringRef path);

  /// The class that the first matching rule gives; nothing where no rule matches.
  std::optional<onnx_ir::AutocastClass> find(onnx_ir::Node node);
  /// The class that the first matching rule of the file gives that states a name.
  std::optional<onnx_ir::AutocastClass> findNamed(onnx_ir::Node node) const;
  /// Globs of the file that have decided no node so far: most likely spelling mistakes.
  std::vector<std::string> unusedNames() const;

private:
  std::vector<Rule> rules;
  std::vector<bool> used; ///< For each rule of the file.
};

} // namespace recast::precision
