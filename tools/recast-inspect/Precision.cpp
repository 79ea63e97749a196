// --precision, --casts, --node: which type each node has, which rule says so, and what each cast is for.
#include "ir/onnx/InlineFunctions.h"
#include "passes/precision/Assignment.h"
#include "passes/precision/FunctionTypes.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/ADT/StringExtras.h"
#include <map>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

namespace {

std::string textOf(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

StringRef nameOf(AutocastClass autocast) {
  switch (autocast) {
  case AutocastClass::Low:
    return "low";
  case AutocastClass::Fp32:
    return "fp32";
  case AutocastClass::Promote:
    return "promote";
  case AutocastClass::Neutral:
    return "neutral";
  case AutocastClass::Never:
    return "never";
  }
  llvm_unreachable("covered");
}

std::string labelOf(Operation *op) {
  Node node(op);
  if (!node.name().empty() || !op->getNumResults())
    return node.name().str();
  return onnx_ir::nameOf(op->getResult(0)).str();
}

// The type that a node computes in: of its first float result, else of its first float operand.
Type computeType(Operation *op) {
  for (ValueRange values : {ValueRange(op->getResults()), ValueRange(op->getOperands())})
    for (Value value : values)
      if (isFloatTensor(value))
        return elementTypeOf(value);
  return op->getNumResults() ? elementTypeOf(op->getResult(0)) : Type();
}

bool isFloatCast(Operation *op) {
  return isa<CastOp, CastLikeOp>(op) && isFloatTensor(op->getOperand(0)) && isFloatTensor(op->getResult(0));
}

// The graph and the functions it calls, with what autocast decides about each as it stands.
class Explainer {
public:
  Explainer(ModuleOp module, precision::Policy policy, Type low) : policy(std::move(policy)), low(low) {
    GraphOp graph = mainGraph(module);
    std::vector<precision::TypedFunction> functions = precision::typeCalledFunctions(graph);
    add(graph, "");
    for (precision::TypedFunction &entry : functions)
      add(entry.function, entry.function.getInfo().getAs<StringAttr>("name").getValue());
  }

  struct Part {
    Operation *holder;
    StringRef function; ///< Empty: the main graph.
    std::unique_ptr<precision::Assignment> assignment;
  };
  const std::vector<Part> &parts() const { return list; }

  llvm::json::Object nodeFacts(const Part &part, Operation *op) const {
    Node node(op);
    llvm::json::Object facts{{"name", labelOf(op)}, {"operator", cost::operatorName(node)}};
    if (!part.function.empty())
      facts["function"] = part.function;
    if (Type type = computeType(op))
      facts["type"] = textOf(type);
    const precision::Choice *choice = part.assignment->find(op);
    if (!choice)
      return facts;
    facts["class"] = choice->autocast ? nameOf(*choice->autocast) : "none";
    facts["rule"] = !choice->rule.empty() ? choice->rule.str() : choice->autocast ? "operator" : "none";
    facts["why"] = why(part, op, *choice);
    if (Type chosen = part.assignment->typeOf(choice->side))
      facts["autocast"] = textOf(chosen);
    return facts;
  }

private:
  void add(Operation *holder, StringRef function) {
    auto assignment = std::make_unique<precision::Assignment>(holder, policy, low);
    assignment->run();
    list.push_back({holder, function, std::move(assignment)});
  }

  std::string why(const Part &part, Operation *op, const precision::Choice &choice) const {
    if (!choice.reason.empty())
      return choice.reason;
    if (!choice.autocast)
      return "no rule names it: keeps its types";
    if (isa<CastOp, CastLikeOp>(op))
      return "a cast: its result has the type that it states";
    Type type = part.assignment->typeOf(choice.side);
    if (!type)
      return "no float operands to decide about";
    if (*choice.autocast == AutocastClass::Low || *choice.autocast == AutocastClass::Fp32)
      return ("its class is " + nameOf(*choice.autocast)).str();
    if (choice.side < 0)
      return type == low ? "all its operands are low"
                         : "the low type is not defined for it, or all it reads are numbers";
    bool isLow = type == low;
    for (Value operand : op->getOperands()) {
      Type found = part.assignment->typeOf(operand);
      bool differs = found && (found == low) != isLow;
      if (differs && isLow)
        return ("fewer bytes are cast than in f32: '" + onnx_ir::nameOf(operand) + "' is f32").str();
      if (!isLow && elementTypeOf(operand).isF32() && !differs && *choice.autocast != AutocastClass::Neutral)
        return ("'" + onnx_ir::nameOf(operand) + "' is f32, the widest type it reads").str();
    }
    return isLow ? "what it reads is low" : "what it reads is f32, or fewer bytes are cast";
  }

  precision::Policy policy;
  Type low;
  std::vector<Part> list;
};

// The low type of the file: that of most values; bf16 where there is none.
Type lowTypeOf(ModuleOp module) {
  Builder b(module.getContext());
  int64_t half = 0, brain = 0;
  module.walk([&](Operation *op) {
    for (Value result : op->getResults())
      if (Type type = elementTypeOf(result)) {
        half += type.isF16();
        brain += type.isBF16();
      }
  });
  return half > brain ? Type(b.getF16Type()) : Type(b.getBF16Type());
}

FailureOr<std::unique_ptr<Explainer>> explain(ModuleOp module, StringRef type, StringRef policyChoice) {
  Builder b(module.getContext());
  precision::typeCalledFunctions(mainGraph(module)); // values in functions count
  Type low = type.empty() ? lowTypeOf(module) : type == "f16" ? Type(b.getF16Type()) : Type(b.getBF16Type());
  auto policy = precision::Policy::load(precision::labelOf(low), policyChoice);
  if (!policy)
    return module.emitError() << llvm::toString(policy.takeError());
  return std::make_unique<Explainer>(module, std::move(*policy), low);
}

std::string readerText(OpOperand &use) {
  Operation *op = use.getOwner();
  if (!isa<ReturnOp>(op))
    return Node(op).describe();
  Region &region = *op->getParentRegion();
  auto names = stringsIn(graphInfo(region), "outputs");
  StringRef name = use.getOperandNumber() < names.size() ? names[use.getOperandNumber()] : onnx_ir::nameOf(use.get());
  return ("the output '" + name + "'").str();
}

} // namespace

FailureOr<llvm::json::Object> explainPrecision(ModuleOp module, StringRef type, StringRef policy) {
  auto explainer = explain(module, type, policy);
  if (failed(explainer))
    return failure();
  llvm::json::Array nodes;
  std::map<std::string, int64_t> types, classes;
  for (const Explainer::Part &part : (*explainer)->parts())
    part.holder->walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (!isNode(op) || isa<ConstantOp>(op))
        return;
      llvm::json::Object facts = (*explainer)->nodeFacts(part, op);
      if (auto found = facts.getString("type"))
        ++types[found->str()];
      ++classes[facts.getString("class").value_or("none").str()];
      nodes.push_back(std::move(facts));
    });
  auto counts = [](const std::map<std::string, int64_t> &map) {
    llvm::json::Object object;
    for (const auto &[key, count] : map)
      object[key] = count;
    return object;
  };
  return llvm::json::Object{{"nodes", std::move(nodes)}, {"types", counts(types)}, {"classes", counts(classes)}};
}

void printPrecision(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  auto cell = [](const llvm::json::Object &node, StringRef key) { return node.getString(key).value_or("-").str(); };
  for (const llvm::json::Value &value : *facts.getArray("nodes")) {
    const llvm::json::Object &node = *value.getAsObject();
    std::string chosen = cell(node, "autocast"), own = cell(node, "type");
    out << llvm::left_justify(cell(node, "name"), 36) << ' ' << llvm::left_justify(cell(node, "operator"), 22) << ' '
        << llvm::left_justify(own, 5) << ' ' << llvm::left_justify(cell(node, "class"), 8) << ' '
        << llvm::left_justify(cell(node, "rule"), 13) << ' ' << cell(node, "why");
    if (chosen != "-" && chosen != own)
      out << "; autocast would choose " << chosen;
    if (node.getString("function"))
      out << " (in function " << cell(node, "function") << ")";
    out << '\n';
  }
  for (StringRef key : {"types", "classes"}) {
    out << (key == "types" ? "Types:" : "Classes:");
    for (const auto &entry : *facts.getObject(key))
      out << ' ' << entry.first.str() << ' ' << *entry.second.getAsInteger();
    out << '\n';
  }
}

FailureOr<llvm::json::Object> explainCasts(ModuleOp module) {
  llvm::json::Array casts;
  int64_t total = 0;
  bool isKnown = true;
  auto add = [&](Operation *holder, StringRef function) {
    holder->walk([&](Operation *op) {
      if (!isFloatCast(op))
        return;
      Value from = op->getOperand(0), to = op->getResult(0);
      llvm::json::Array readers;
      for (OpOperand &use : to.getUses())
        readers.push_back(readerText(use));
      std::reverse(readers.begin(), readers.end()); // uses are listed last first
      llvm::json::Object cast{{"value", onnx_ir::nameOf(from)},
                              {"cast", labelOf(op)},
                              {"from", textOf(elementTypeOf(from))},
                              {"to", textOf(elementTypeOf(to))},
                              {"readers", std::move(readers)}};
      auto type = dyn_cast<RankedTensorType>(from.getType());
      if (type && type.hasStaticShape()) {
        int64_t bits = storageBits(elementTypeOf(from)) + storageBits(elementTypeOf(to));
        int64_t bytes = type.getNumElements() * bits / 8;
        cast["bytes"] = bytes;
        total += bytes;
      } else {
        isKnown = false;
      }
      if (!function.empty())
        cast["function"] = function;
      casts.push_back(std::move(cast));
    });
  };
  GraphOp graph = mainGraph(module);
  std::vector<precision::TypedFunction> functions = precision::typeCalledFunctions(graph);
  add(graph, "");
  for (precision::TypedFunction &entry : functions)
    add(entry.function, entry.function.getInfo().getAs<StringAttr>("name").getValue());
  llvm::json::Object facts{{"casts", std::move(casts)}};
  if (isKnown)
    facts["bytes"] = total;
  return facts;
}

void printCasts(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Array &casts = *facts.getArray("casts");
  for (const llvm::json::Value &value : casts) {
    const llvm::json::Object &cast = *value.getAsObject();
    const llvm::json::Array &readers = *cast.getArray("readers");
    out << llvm::left_justify(*cast.getString("value"), 36) << ' ' << *cast.getString("from") << " -> "
        << *cast.getString("to") << "  ";
    if (auto bytes = cast.getInteger("bytes"))
      out << *bytes << " bytes";
    else
      out << "size open";
    if (auto function = cast.getString("function"))
      out << ", in function " << *function;
    out << ", for ";
    if (readers.empty())
      out << "nothing";
    for (size_t i = 0; i < readers.size() && i < 3; ++i)
      out << (i ? ", " : "") << *readers[i].getAsString();
    if (readers.size() > 3)
      out << " and " << readers.size() - 3 << " more";
    out << '\n';
  }
  out << "Casts: " << casts.size();
  if (auto bytes = facts.getInteger("bytes"))
    out << ", " << *bytes << " bytes read and written\n";
  else
    out << ", bytes depend on open sizes (bind them with --dim=NAME=N)\n";
}

FailureOr<llvm::json::Object> explainNode(ModuleOp module, StringRef name, StringRef type, StringRef policy) {
  auto explainer = explain(module, type, policy);
  if (failed(explainer))
    return failure();
  llvm::json::Object facts;
  for (const Explainer::Part &part : (*explainer)->parts())
    part.holder->walk<WalkOrder::PreOrder>([&](Operation *op) {
      bool gives = isNode(op) && llvm::any_of(op->getResults(), [&](Value v) { return onnx_ir::nameOf(v) == name; });
      if (!isNode(op) || !facts.empty() || (Node(op).name() != name && !gives))
        return;
      facts = (*explainer)->nodeFacts(part, op);
      Node node(op);
      facts["version"] = node.sinceVersion();
      llvm::json::Array inputs, outputs, origin;
      for (Value operand : op->getOperands()) {
        if (isAbsent(operand))
          continue;
        Operation *from = operand.getDefiningOp();
        std::string source = !from                      ? "graph or body input"
                             : isa<InitializerOp>(from) ? "initializer"
                                                        : Node(from).describe();
        inputs.push_back(llvm::json::Object{
            {"name", onnx_ir::nameOf(operand)}, {"type", textOf(operand.getType())}, {"from", source}});
      }
      for (Value result : op->getResults()) {
        llvm::json::Array readers;
        for (OpOperand &use : result.getUses())
          readers.push_back(readerText(use));
        std::reverse(readers.begin(), readers.end());
        outputs.push_back(llvm::json::Object{
            {"name", onnx_ir::nameOf(result)}, {"type", textOf(result.getType())}, {"readers", std::move(readers)}});
      }
      facts["inputs"] = std::move(inputs);
      facts["outputs"] = std::move(outputs);
      // What the exporter wrote about the node.
      if (auto rest = op->getAttrOfType<DictionaryAttr>("onnx.rest")) {
        if (auto text = rest.getAs<StringAttr>("doc_string"))
          origin.push_back(text.str());
        if (auto properties = rest.getAs<ArrayAttr>("metadata_props"))
          for (auto entry : properties.getAsRange<DictionaryAttr>())
            if (auto key = entry.getAs<StringAttr>("key"), text = entry.getAs<StringAttr>("value"); key && text)
              origin.push_back((key.getValue() + ": " + text.getValue()).str());
      }
      facts["origin"] = std::move(origin);
    });
  if (facts.empty())
    return module.emitError() << "--node=" << name << ": no node has this name, and none gives a value of this name";
  return facts;
}

void printNode(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  auto cell = [&](StringRef key) { return facts.getString(key).value_or("-").str(); };
  out << cell("name") << ": " << cell("operator") << "-" << facts.getInteger("version").value_or(1) << '\n';
  if (facts.getString("function"))
    out << "in function " << cell("function") << '\n';
  out << "runs in " << cell("type") << ", class " << cell("class") << " by " << cell("rule") << ": " << cell("why")
      << '\n';
  for (const llvm::json::Value &line : *facts.getArray("origin"))
    out << "origin: " << *line.getAsString() << '\n';
  for (const llvm::json::Value &value : *facts.getArray("inputs")) {
    const llvm::json::Object &input = *value.getAsObject();
    out << "reads  " << *input.getString("name") << " (" << *input.getString("type") << ") from "
        << *input.getString("from") << '\n';
  }
  for (const llvm::json::Value &value : *facts.getArray("outputs")) {
    const llvm::json::Object &output = *value.getAsObject();
    out << "gives  " << *output.getString("name") << " (" << *output.getString("type") << ") to ";
    const llvm::json::Array &readers = *output.getArray("readers");
    for (size_t i = 0; i < readers.size(); ++i)
      out << (i ? ", " : "") << *readers[i].getAsString();
    out << (readers.empty() ? "nothing\n" : "\n");
  }
}

} // namespace recast::inspect
