#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/onnx/Node.h"
#include "tools/recast-inspect/Inspect.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

FailureOr<llvm::json::Object> explainTrainable(ModuleOp module, StringRef loss,
                                               const gradient::TrainableOptions &options) {
  GraphOp graph = mainGraph(module);
  auto lossValue = gradient::findLoss(graph, loss);
  if (failed(lossValue))
    return failure();
  auto choices = gradient::chooseTrainable(graph, *lossValue, options);
  if (failed(choices))
    return failure();
  llvm::json::Array trainable, frozen, blocked;
  SmallVector<Value> parameters;
  for (const gradient::Choice &choice : *choices) {
    std::string type;
    llvm::raw_string_ostream(type) << choice.value.getType();
    std::string reason = choice.reason;
    if (auto row = choice.trainable ? gradient::paddingRow(choice.value) : std::nullopt)
      reason += "; row " + std::to_string(*row) + " holds only zeros: padding, which look-ups give no gradient";
    llvm::json::Object entry{{"name", nameOf(choice.value)}, {"type", type}, {"reason", reason}};
    (choice.trainable ? trainable : frozen).push_back(std::move(entry));
    if (choice.trainable)
      parameters.push_back(choice.value);
  }
  llvm::DenseSet<Value> influencing = gradient::influencingValues(graph, *lossValue);
  llvm::DenseSet<Value> dependent = gradient::dependentValues(graph, parameters);
  for (Operation &op : graph.getBody().front()) {
    Node node(&op);
    bool onPath = isNode(&op) && llvm::any_of(op.getResults(), [&](Value v) {
                    return influencing.contains(v) && dependent.contains(v);
                  });
    if (onPath && !gradient::findRule(node) && !hasFunctionBody(node) && !findFunction(node))
      blocked.push_back(llvm::json::Object{{"node", node.describe()}, {"reason", "no gradient rule"}});
  }
  return llvm::json::Object{{"loss", nameOf(*lossValue)},
                            {"trainable", std::move(trainable)},
                            {"frozen", std::move(frozen)},
                            {"blocked", std::move(blocked)}};
}

void printTrainable(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  out << "Loss: " << *facts.getString("loss") << '\n';
  for (auto [title, key] : {std::pair<StringRef, StringRef>{"Trainable", "trainable"}, {"Not trained", "frozen"}}) {
    const llvm::json::Array &entries = *facts.getArray(key);
    out << title << " (" << entries.size() << ")\n";
    for (const llvm::json::Value &value : entries) {
      const llvm::json::Object &entry = *value.getAsObject();
      out << "  " << llvm::left_justify(*entry.getString("name"), 40) << ' ' << *entry.getString("reason") << '\n';
    }
  }
  if (const llvm::json::Array &blocked = *facts.getArray("blocked"); !blocked.empty()) {
    out << "Cannot be differentiated (" << blocked.size() << ")\n";
    for (const llvm::json::Value &value : blocked)
      out << "  " << *value.getAsObject()->getString("node") << ": " << *value.getAsObject()->getString("reason")
          << '\n';
  }
}

} // namespace recast::inspect
