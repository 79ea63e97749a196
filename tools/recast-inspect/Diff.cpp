// --diff: what another model has instead.
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Format.h"
#include <map>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

namespace {

using llvm::json::Array;
using llvm::json::Object;

/// A value or setting by its name: what is said about it, and its data where it has some.
struct Named {
  std::string name, text;
  TensorAttr data;
};

Object change(StringRef what, StringRef before, StringRef after) {
  return Object{{"what", what.str()}, {"before", before.str()}, {"after", after.str()}};
}

bool haveSameData(TensorAttr a, TensorAttr b) {
  if (a == b)
    return true;
  if (withoutSymbols(a.getType()) != withoutSymbols(b.getType()))
    return false;
  ArrayRef<char> x = rawBytes(a), y = rawBytes(b);
  return x.empty() && y.empty() ? a.getPayload() == b.getPayload() : x == y;
}

/// How far apart the numbers of two tensors of one type are.
std::string distanceText(TensorAttr a, TensorAttr b) {
  auto x = asDoubles(a), y = asDoubles(b);
  if (!x || !y || x->size() != y->size())
    return "other values";
  size_t differing = 0;
  double most = 0;
  for (auto [p, q] : llvm::zip(*x, *y)) {
    bool areBothNaN = p != p && q != q;
    differing += p != q && !areBothNaN;
    if (p != q && !areBothNaN)
      most = most != most ? most : std::max(most, std::abs(p - q));
  }
  std::string text;
  llvm::raw_string_ostream(text) << differing << " of " << x->size() << " other values, by at most "
                                 << llvm::format("%g", most);
  return text;
}

std::string textOf(Attribute attr) {
  if (auto tensor = dyn_cast<TensorAttr>(attr)) {
    std::string text = typeText(tensor.getType());
    if (auto values = tensor.getType().getNumElements() <= 8 ? asDoubles(tensor) : std::nullopt) {
      llvm::raw_string_ostream out(text);
      out << " = ";
      llvm::interleave(*values, out, [&](double value) { out << llvm::format("%g", value); }, ", ");
    }
    return text;
  }
  constexpr size_t kMost = 80;
  std::string text;
  llvm::raw_string_ostream out(text);
  if (auto string = dyn_cast<StringAttr>(attr))
    out << string.getValue();
  else
    attr.print(out, /*elideType=*/true);
  return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

/// {"added", "removed": [{"name", "text"}], "changed": [{"name", "changes": [CHANGE]}]}.
Object compare(ArrayRef<Named> before, ArrayRef<Named> after) {
  llvm::StringMap<const Named *> known;
  for (const Named &item : before)
    known[item.name] = &item;
  Array added, removed, changed;
  llvm::StringSet<> met;
  for (const Named &item : after) {
    const Named *old = known.lookup(item.name);
    met.insert(item.name);
    if (!old) {
      added.push_back(Object{{"name", item.name}, {"text", item.text}});
      continue;
    }
    Array changes;
    if (old->text != item.text)
      changes.push_back(change("", old->text, item.text));
    else if (old->data && item.data && !haveSameData(old->data, item.data))
      changes.push_back(change("", item.text, item.text + ", " + distanceText(old->data, item.data)));
    if (!changes.empty())
      changed.push_back(Object{{"name", item.name}, {"changes", std::move(changes)}});
  }
  for (const Named &item : before)
    if (!met.contains(item.name))
      removed.push_back(Object{{"name", item.name}, {"text", item.text}});
  return Object{{"added", std::move(added)}, {"removed", std::move(removed)}, {"changed", std::move(changed)}};
}

/// Versions of operator sets, and metadata.
SmallVector<Named> settingsOf(ModuleOp module) {
  SmallVector<Named> settings;
  if (auto opsets = module->getAttrOfType<ArrayAttr>("onnx.opsets"))
    for (auto entry : opsets.getAsRange<ArrayAttr>()) {
      StringRef domain = normalDomain(cast<StringAttr>(entry[0]).getValue());
      settings.push_back({("opset " + (domain.empty() ? "ai.onnx" : domain)).str(), textOf(entry[1]), nullptr});
    }
  if (auto metadata = module->getAttrOfType<ArrayAttr>("onnx.metadata"))
    for (auto entry : metadata.getAsRange<ArrayAttr>())
      settings.push_back({("metadata " + cast<StringAttr>(entry[0]).getValue()).str(), textOf(entry[1]), nullptr});
  return settings;
}

SmallVector<Named> inputsOf(GraphOp graph) {
  SmallVector<Named> inputs;
  auto defaults = graph.getInfo().getAs<ArrayAttr>("defaults");
  for (BlockArgument argument : graph.getBody().getArguments()) {
    auto value = defaults && argument.getArgNumber() < defaults.size()
                     ? dyn_cast<TensorAttr>(defaults[argument.getArgNumber()])
                     : TensorAttr();
    inputs.push_back({nameOf(argument).str(), typeText(argument.getType()), value});
  }
  return inputs;
}

SmallVector<Named> outputsOf(GraphOp graph) {
  SmallVector<Named> outputs;
  SmallVector<StringRef> names = stringsIn(graph.getInfo(), "outputs");
  for (OpOperand &output : graph.getBody().front().getTerminator()->getOpOperands()) {
    size_t i = output.getOperandNumber();
    StringRef name = i < names.size() ? names[i] : nameOf(output.get());
    outputs.push_back({name.str(), typeText(output.get().getType()), nullptr});
  }
  return outputs;
}

SmallVector<Named> initializersOf(GraphOp graph) {
  SmallVector<Named> initializers;
  for (auto op : graph.getBody().front().getOps<InitializerOp>())
    initializers.push_back({nameOf(op.getResult()).str(), typeText(op.getValue().getType()), op.getValue()});
  return initializers;
}

std::string nameOrAbsent(Value value) { return isAbsent(value) ? "none" : "'" + nameOf(value).str() + "'"; }

/// Nodes of the graph, of bodies in it and of local functions, by what tells them apart: their function, and their
/// operator and name, or the first value that they give.
class Nodes {
public:
  explicit Nodes(ModuleOp module) {
    module.walk<WalkOrder::PreOrder>([&](Operation *op) {
      if (isNode(op))
        list.push_back(op);
    });
  }
  static std::string scopeOf(Operation *op) {
    auto function = op->getParentOfType<FunctionOp>();
    return function ? function.getInfo().getAs<StringAttr>("name").getValue().str() + "/" : "";
  }
  static std::string byValue(Operation *op) {
    StringRef value = op->getNumResults() ? nameOf(op->getResult(0)) : StringRef();
    return value.empty() ? "" : scopeOf(op) + value.str();
  }
  static std::string byName(Operation *op) {
    StringRef name = Node(op).name();
    return name.empty() ? "" : scopeOf(op) + cost::operatorName(op) + "/" + name.str();
  }
  SmallVector<Operation *> list;
};

/// For each node of `after` the one of `before` that it was, or null. Bodies may repeat a key: then in order.
llvm::DenseMap<Operation *, Operation *> pair(const Nodes &before, const Nodes &after) {
  llvm::DenseMap<Operation *, Operation *> was;
  llvm::DenseSet<Operation *> taken;
  for (auto key : {Nodes::byName, Nodes::byValue}) {
    std::map<std::string, SmallVector<Operation *>> known;
    for (Operation *op : llvm::reverse(before.list))
      if (!taken.contains(op))
        known[key(op)].push_back(op);
    for (Operation *op : after.list) {
      std::string name = key(op);
      auto found = known.find(name);
      if (name.empty() || was.contains(op) || found == known.end() || found->second.empty())
        continue;
      was[op] = found->second.pop_back_val();
      taken.insert(was[op]);
    }
  }
  return was;
}

Array changesOf(Operation *before, Operation *after) {
  Array changes;
  auto compareText = [&](const Twine &what, const std::string &old, const std::string &now) {
    if (old != now)
      changes.push_back(change(what.str(), old, now));
  };
  compareText("operator", cost::operatorName(before), cost::operatorName(after));
  for (unsigned i = 0; i < std::max(before->getNumOperands(), after->getNumOperands()); ++i)
    compareText("input " + Twine(i), i < before->getNumOperands() ? nameOrAbsent(before->getOperand(i)) : "none",
                i < after->getNumOperands() ? nameOrAbsent(after->getOperand(i)) : "none");
  for (unsigned i = 0; i < std::max(before->getNumResults(), after->getNumResults()); ++i) {
    Value old = i < before->getNumResults() ? before->getResult(i) : Value();
    Value now = i < after->getNumResults() ? after->getResult(i) : Value();
    compareText("output " + Twine(i), nameOrAbsent(old), nameOrAbsent(now));
    if (!isAbsent(old) && !isAbsent(now) && !isUnknown(old.getType()) && !isUnknown(now.getType()))
      compareText("type of " + nameOrAbsent(now), typeText(old.getType()), typeText(now.getType()));
  }
  std::map<std::string, std::pair<Attribute, Attribute>> attrs;
  for (NamedAttribute attr : before->getAttrs())
    attrs[attr.getName().str()].first = attr.getValue();
  for (NamedAttribute attr : after->getAttrs())
    attrs[attr.getName().str()].second = attr.getValue();
  for (auto &[name, values] : attrs) {
    auto [old, now] = values;
    if (StringRef(name).starts_with("onnx.") || old == now)
      continue;
    auto oldTensor = dyn_cast_or_null<TensorAttr>(old), nowTensor = dyn_cast_or_null<TensorAttr>(now);
    if (oldTensor && nowTensor && haveSameData(oldTensor, nowTensor))
      continue;
    std::string oldText = old ? textOf(old) : "none", nowText = now ? textOf(now) : "none";
    if (oldText == nowText)
      nowText += oldTensor && nowTensor ? ", " + distanceText(oldTensor, nowTensor) : ", another";
    compareText("attribute " + name, oldText, nowText);
  }
  return changes;
}

Object compareNodes(ModuleOp first, ModuleOp second) {
  Nodes before(first), after(second);
  llvm::DenseMap<Operation *, Operation *> was = pair(before, after);
  llvm::DenseSet<Operation *> kept;
  Array added, removed, changed;
  auto facts = [](Operation *op) {
    return Object{{"name", Nodes::scopeOf(op) + Node(op).describe()}, {"text", cost::operatorName(op)}};
  };
  int64_t same = 0;
  for (Operation *op : after.list) {
    Operation *old = was.lookup(op);
    if (!old) {
      added.push_back(facts(op));
      continue;
    }
    kept.insert(old);
    Array changes = changesOf(old, op);
    if (changes.empty())
      ++same;
    else
      changed.push_back(Object{{"name", Nodes::scopeOf(op) + Node(op).describe()}, {"changes", std::move(changes)}});
  }
  for (Operation *op : before.list)
    if (!kept.contains(op))
      removed.push_back(facts(op));
  return Object{
      {"added", std::move(added)}, {"removed", std::move(removed)}, {"changed", std::move(changed)}, {"same", same}};
}

constexpr std::pair<StringLiteral, StringLiteral> kKinds[] = {{"settings", ""},
                                                              {"inputs", "input "},
                                                              {"outputs", "output "},
                                                              {"initializers", "initializer "},
                                                              {"nodes", "node "}};

} // namespace

Object diff(ModuleOp before, ModuleOp after) {
  GraphOp first = mainGraph(before), second = mainGraph(after);
  return Object{{"settings", compare(settingsOf(before), settingsOf(after))},
                {"inputs", compare(inputsOf(first), inputsOf(second))},
                {"outputs", compare(outputsOf(first), outputsOf(second))},
                {"initializers", compare(initializersOf(first), initializersOf(second))},
                {"nodes", compareNodes(before, after)}};
}

void printDiff(const Object &facts, llvm::raw_ostream &out) {
  int64_t differences = 0;
  for (auto [kind, label] : kKinds) {
    const Object &part = *facts.getObject(kind);
    bool isNodes = kind == "nodes"; // Their names say the operator.
    for (auto [list, sign] : {std::pair("removed", '-'), std::pair("added", '+')})
      for (const llvm::json::Value &value : *part.getArray(list)) {
        const Object &item = *value.getAsObject();
        out << sign << ' ' << label << *item.getString("name");
        if (!isNodes)
          out << "  " << *item.getString("text");
        out << '\n';
        ++differences;
      }
    for (const llvm::json::Value &value : *part.getArray("changed")) {
      const Object &item = *value.getAsObject();
      out << "~ " << label << *item.getString("name") << '\n';
      for (const llvm::json::Value &entry : *item.getArray("changes")) {
        const Object &one = *entry.getAsObject();
        StringRef what = *one.getString("what");
        out << "    " << what << (what.empty() ? "" : ": ") << *one.getString("before") << " -> "
            << *one.getString("after") << '\n';
      }
      ++differences;
    }
  }
  const Object &nodes = *facts.getObject("nodes");
  if (!differences)
    out << "no differences: ";
  out << nodes.getArray("added")->size() << " nodes added, " << nodes.getArray("removed")->size() << " removed, "
      << nodes.getArray("changed")->size() << " changed, " << *nodes.getInteger("same") << " the same\n";
}

} // namespace recast::inspect
