#include "ir/onnx/Builder.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "passes/Passes.h"
#include "llvm/ADT/StringSwitch.h"

namespace recast {
#define GEN_PASS_DEF_RAISEOPSET
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// Below it operators change in more ways than convert() knows: Softmax, Squeeze, ReduceSum, Clip, ...
constexpr int64_t kOldestOpset = 13;
// The first whose BatchNormalization says with an attribute that it trains, and has types for all of its outputs.
constexpr int64_t kTrainingNormOpset = 14;

bool isOldTrainingNorm(Node node) {
  if (!isa<BatchNormalizationOp>(node.operation()) || node.sinceVersion() >= kTrainingNormOpset)
    return false;
  for (unsigned i = 1; i < node.numOutputs(); ++i)
    if (!isAbsent(node.output(i)))
      return true;
  return false;
}

const onnx::OpSchema *schemaAt(Node node, int64_t opset) {
  return onnx::OpSchemaRegistry::Schema(node.opType().str(), static_cast<int>(opset), "");
}

// True where a node of the old definition means the same by the new one: what was added is optional, and nothing that
// was there has changed but the types that it allows. Operators whose meaning changed otherwise are in convert().
bool isExtension(const onnx::OpSchema &before, const onnx::OpSchema &after) {
  if (after.inputs().size() < before.inputs().size() || after.outputs().size() < before.outputs().size() ||
      after.deprecated())
    return false;
  for (auto [i, input] : llvm::enumerate(after.inputs()))
    if (i >= before.inputs().size() && input.GetOption() != onnx::OpSchema::Optional)
      return false;
  for (const auto &[name, attribute] : before.attributes()) {
    auto found = after.attributes().find(name);
    if (found == after.attributes().end() || found->second.type != attribute.type ||
        found->second.default_value.SerializeAsString() != attribute.default_value.SerializeAsString())
      return false;
  }
  return llvm::none_of(after.attributes(), [&](const auto &entry) {
    return entry.second.required && !before.attributes().contains(entry.first);
  });
}

enum class Conversion { Unknown, Refused, Done };

// Brings the nodes of one graph or function from one opset to a later one.
class Raiser {
public:
  Raiser(Operation *scope, int64_t from, int64_t to, StringRef user) : scope(scope), from(from), to(to), user(user) {}

  LogicalResult run() {
    NameScope names(scope);
    TypeInference types;
    NodeBuilder builder(scope, names, types);
    b = &builder;
    WalkResult result = scope->walk([&](Operation *op) {
      if (!isNode(op) || !Node(op).domain().empty())
        return WalkResult::advance();
      return failed(raise(Node(op))) ? WalkResult::interrupt() : WalkResult::advance();
    });
    return failure(result.wasInterrupted());
  }

private:
  LogicalResult raise(Node node) {
    const onnx::OpSchema *before = schemaAt(node, from), *after = schemaAt(node, to);
    if (!before || (after && before->since_version() == after->since_version()))
      return success();
    Conversion done = after ? convert(node) : Conversion::Refused;
    if (done == Conversion::Done || (done == Conversion::Unknown && isExtension(*before, *after)))
      return success();
    return node->emitError() << "node " << node.describe() << ": the definition of " << node.opType()
                             << " changes between opset " << from << ", which the model imports, and " << to
                             << ", which " << user << " needs: export the model again with opset " << to;
  }

  Conversion convert(Node node) {
    StringRef op = node.opType();
    if (op.starts_with("Reduce") && from < 18 && to >= 18 && op != "ReduceSum") {
      auto axes = node.getInts("axes");
      if (axes) {
        b->before(node.operation());
        node->insertOperands(node->getNumOperands(), b->ints(*axes));
        node->removeAttr("axes");
      }
      return Conversion::Done;
    }
    if (op == "Split" && from < 18 && to >= 18) {
      if (!node.input(1))
        node->setAttr("num_outputs", b->attr("", static_cast<int64_t>(node.numOutputs())).getValue());
      return Conversion::Done;
    }
    if (op == "GridSample" && from < 20 && to >= 20) {
      StringRef mode = node.getString("mode", "bilinear");
      StringRef renamed =
          llvm::StringSwitch<StringRef>(mode).Case("bilinear", "linear").Case("bicubic", "cubic").Default(mode);
      node->setAttr("mode", b->attr("", renamed).getValue());
      return Conversion::Done;
    }
    if (op == "RoiAlign" && from < 16 && to >= 16) {
      node->setAttr("coordinate_transformation_mode", b->attr("", StringRef("output_half_pixel")).getValue());
      return Conversion::Done;
    }
    if (op == "BatchNormalization" && from < kTrainingNormOpset && to >= kTrainingNormOpset)
      return isOldTrainingNorm(node) ? convertTrainingNorm(node) : Conversion::Done;
    // Scale and bias: one a group, then one a channel. An axis that became an input.
    bool changed = (op == "GroupNormalization" && from < 21 && to >= 21) || (op == "DFT" && from < 20 && to >= 20);
    return changed ? Conversion::Refused : Conversion::Unknown;
  }

  // y, mean, variance, saved mean and saved variance became y, mean and variance.
  Conversion convertTrainingNorm(Node node) {
    for (unsigned i = 3; i < node.numOutputs(); ++i)
      if (!node.output(i).use_empty())
        return Conversion::Refused;
    Operation *op = node.operation();
    OpBuilder builder(op);
    OperationState state(op->getLoc(), op->getName());
    unsigned kept = std::min(node.numOutputs(), 3u);
    state.addOperands(op->getOperands());
    state.addTypes(SmallVector<Type>(op->result_type_begin(), op->result_type_begin() + kept));
    state.addAttributes(op->getAttrs());
    Operation *made = builder.create(state);
    SmallVector<StringRef> names = stringsIn(op->getAttrDictionary(), "onnx.outputs");
    names.resize(kept);
    made->setAttr("onnx.outputs", stringArray(op->getContext(), names));
    made->setAttr("training_mode", b->attr("", int64_t(1)).getValue());
    for (unsigned i = 0; i < kept; ++i)
      op->getResult(i).replaceAllUsesWith(made->getResult(i));
    op->erase();
    return Conversion::Done;
  }

  Operation *scope;
  int64_t from, to;
  StringRef user;
  NodeBuilder *b = nullptr;
};

// The imports with another version for the default domain.
ArrayAttr withOpset(ArrayAttr opsets, int64_t version) {
  Builder b(opsets.getContext());
  SmallVector<Attribute> entries;
  for (Attribute entry : opsets) {
    SmallVector<Attribute> parts(cast<ArrayAttr>(entry).getValue());
    if (normalDomain(cast<StringAttr>(parts[0]).getValue()).empty())
      parts[1] = b.getI64IntegerAttr(version);
    entries.push_back(b.getArrayAttr(parts));
  }
  return b.getArrayAttr(entries);
}

struct RaiseOpsetPass : impl::RaiseOpsetBase<RaiseOpsetPass> {
  using RaiseOpsetBase::RaiseOpsetBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    GraphOp graph = mainGraph(module);
    int64_t latest = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
    if (opset > latest) {
      graph.emitError() << "opset " << opset.getValue() << " is not known, the latest is " << latest;
      return signalPassFailure();
    }
    if (opset == 0 && !needsTrainingNorm(graph))
      return;
    if (opset == 0) {
      opset = kTrainingNormOpset;
      user = "the training form of BatchNormalization";
    }
    if (failed(raise(graph)))
      return signalPassFailure();
    auto opsets = module->getAttrOfType<ArrayAttr>("onnx.opsets");
    if (opsetVersion(graph, "") < opset)
      module->setAttr("onnx.opsets", withOpset(opsets, opset));
    // The checker wants operators to mean the same in functions and in the graph.
    for (auto function : module.getOps<FunctionOp>()) {
      if (failed(raise(function)))
        return signalPassFailure();
      auto own = function.getInfo().getAs<ArrayAttr>("opsets");
      if (int64_t version = opsetVersion(&function.getBody().front().front(), ""); version && version < opset)
        function.setInfoAttr(withEntry(function.getInfo(), "opsets", withOpset(own, opset)));
    }
  }

  static bool needsTrainingNorm(GraphOp graph) {
    return llvm::any_of(graph.getBody().front().getOps<BatchNormalizationOp>(),
                        [](BatchNormalizationOp norm) { return isOldTrainingNorm(Node(norm)); });
  }

  LogicalResult raise(Operation *scope) {
    int64_t from = opsetVersion(&scope->getRegion(0).front().front(), "");
    if (from == 0 || from >= opset)
      return success();
    if (from < kOldestOpset)
      return scope->emitError() << "the model imports opset " << from << "; " << user << " needs opset "
                                << opset.getValue() << ", to which recast brings models from opset " << kOldestOpset
                                << " on: export the model again with opset " << opset.getValue();
    return Raiser(scope, from, opset, user).run();
  }

  StringRef user = "what was asked for";
};

} // namespace
} // namespace recast
