#include "passes/gradient/Differentiability.h"
#include "ir/onnx/TensorData.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include <cstring>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

FailureOr<Value> findLoss(GraphOp graph, StringRef name) {
  SmallVector<Value> scalars;
  std::string known;
  for (Value output : graph.getBody().front().getTerminator()->getOperands()) {
    StringRef label = nameOf(output);
    auto type = dyn_cast<RankedTensorType>(output.getType());
    bool isScalar = type && isa<FloatType>(type.getElementType()) &&
                    (type.getRank() == 0 || (type.hasStaticShape() && type.getNumElements() == 1));
    if (name.empty() ? isScalar : label == name)
      scalars.push_back(output);
    std::string shown;
    llvm::raw_string_ostream(shown) << output.getType();
    known += (known.empty() ? "'" : ", '") + label.str() + "' (" + shown + ")";
    if (!name.empty() && label == name && !isScalar)
      return graph.emitError() << "the output '" << name << "' cannot be the loss: it is no floating-point scalar";
  }
  if (scalars.size() > 1)
    for (Value output : scalars)
      if (nameOf(output) == "loss")
        return output;
  if (scalars.size() != 1)
    return graph.emitError() << (name.empty() ? scalars.empty() ? "no output is a floating-point scalar"
                                                                : "several outputs could be the loss"
                                              : "no output has the name given as the loss")
                             << "; outputs are " << known << ": choose one with --loss=NAME";
  return scalars.front();
}

// A value of unknown type, a sequence and an optional may hold floats: to pass them over would cut the path without a
// word.
static bool mayHoldFloats(Value value) {
  return isFloatTensor(value) || isa<UnknownType, onnx_ir::OpaqueType>(value.getType());
}

// True where a gradient flows from the node's outputs to operand `i`; `rule` is the node's.
static bool carriesGradient(Node node, const Rule *rule, unsigned i) {
  if (!node.input(i) || !mayHoldFloats(node.input(i)))
    return false;
  return !rule || (rule->kind == Kind::Rule && (i >= 64 || (rule->inputs >> i & 1) || rule->inputs == ~0ull));
}

llvm::DenseSet<Value> influencingValues(GraphOp graph, Value loss) {
  llvm::DenseSet<Value> found{loss};
  for (Operation &op : llvm::reverse(graph.getBody().front())) {
    if (!isNode(&op) || llvm::none_of(op.getResults(), [&](Value v) { return found.contains(v); }))
      continue;
    Node node(&op);
    const Rule *rule = findRule(node);
    for (unsigned i = 0; i < node.numInputs(); ++i)
      if (carriesGradient(node, rule, i))
        found.insert(node.input(i));
    // Bodies may read values of the graph.
    op.walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        if (inner != &op && isFloatTensor(operand))
          found.insert(operand);
    });
  }
  return found;
}

llvm::DenseSet<Value> dependentValues(GraphOp graph, ArrayRef<Value> sources) {
  llvm::DenseSet<Value> found(sources.begin(), sources.end());
  for (Operation &op : graph.getBody().front()) {
    if (!isNode(&op))
      continue;
    Node node(&op);
    bool depends = false;
    const Rule *rule = findRule(node);
    for (unsigned i = 0; i < node.numInputs() && !depends; ++i)
      depends = found.contains(op.getOperand(i)) && carriesGradient(node, rule, i);
    if (op.getNumRegions() && !depends)
      op.walk([&](Operation *inner) {
        depends |= llvm::any_of(inner->getOperands(), [&](Value v) { return found.contains(v); });
      });
    if (depends)
      for (Value result : op.getResults())
        if (mayHoldFloats(result))
          found.insert(result);
  }
  return found;
}

bool matchesGlob(StringRef pattern, StringRef text) {
  // Iterative matching with one point of return: linear for the patterns that people write.
  size_t p = 0, t = 0, star = StringRef::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != StringRef::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

namespace {

// ATen calls after which dynamo names what it folds.
constexpr StringLiteral kFoldedCalls[] = {"abs",
                                          "add",
                                          "arange",
                                          "bitwise_and",
                                          "bitwise_or",
                                          "c_lifted_tensor",
                                          "cat",
                                          "clamp",
                                          "clone",
                                          "const",
                                          "constant",
                                          "copy",
                                          "cos",
                                          "cumsum",
                                          "div",
                                          "empty",
                                          "eq",
                                          "exp",
                                          "expand",
                                          "eye",
                                          "fill",
                                          "flip",
                                          "full",
                                          "full_like",
                                          "gather",
                                          "ge",
                                          "gt",
                                          "index",
                                          "index_select",
                                          "le",
                                          "lift_fresh_copy",
                                          "lifted_tensor",
                                          "linspace",
                                          "log",
                                          "logical_and",
                                          "logical_not",
                                          "logical_or",
                                          "lt",
                                          "masked_fill",
                                          "max",
                                          "maximum",
                                          "mean",
                                          "min",
                                          "minimum",
                                          "mul",
                                          "ne",
                                          "neg",
                                          "new_full",
                                          "new_ones",
                                          "new_zeros",
                                          "ones",
                                          "ones_like",
                                          "outer",
                                          "permute",
                                          "pow",
                                          "reciprocal",
                                          "repeat",
                                          "reshape",
                                          "rsqrt",
                                          "rsub",
                                          "scalar_tensor",
                                          "scalar_tensor_default",
                                          "select",
                                          "sin",
                                          "slice",
                                          "split",
                                          "sqrt",
                                          "squeeze",
                                          "stack",
                                          "sub",
                                          "sum",
                                          "t",
                                          "tile",
                                          "to_copy",
                                          "transpose",
                                          "tril",
                                          "triu",
                                          "unsqueeze",
                                          "view",
                                          "where",
                                          "zeros",
                                          "zeros_like"};

// Takes numbers such as `_12` off the end of a name; how many.
int dropNumbers(StringRef &name) {
  for (int count = 0;; ++count) {
    StringRef stem = name.rtrim("0123456789");
    if (stem.size() == name.size() || !stem.consume_back("_"))
      return count;
    name = stem;
  }
}

// Names that exporters make up for constants: `val_12` and names of folded ATen calls such as `unsqueeze_14` (dynamo),
// `onnx::Add_3` and `/model/Constant_1_output_0` (TorchScript), `12` (older TorchScript).
bool isExporterName(StringRef name) {
  if (!name.empty() && llvm::all_of(name, llvm::isDigit))
    return true;
  StringRef stem = name;
  int numbers = dropNumbers(stem);
  if (stem.consume_front("onnx::"))
    return numbers == 1 && !stem.empty() && llvm::all_of(stem, llvm::isAlnum);
  if (stem.starts_with("/"))
    return numbers == 1 && stem.consume_back("_output") && dropNumbers(stem) <= 1 && stem.ends_with("Constant");
  stem.consume_front("_");
  return stem == "val" ? numbers == 1 || numbers == 2 : llvm::is_contained(kFoldedCalls, stem);
}

// True where an operator reads the tensor as its weight: exporters fold transposes into tensors with names of their
// own.
bool isWeightOfProduct(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() >= 2 && llvm::any_of(value.getUses(), [](OpOperand &use) {
           Node node(use.getOwner());
           return use.getOperandNumber() == 1 &&
                  (node.is("MatMul") || node.is("Gemm") || node.is("Conv") || node.is("ConvTranspose"));
         });
}

// Zeros, and one large negative number: -1e3 or less, or for a matrix with zeros the -100 of Swin's windows.
template <typename T> bool holdsAdditiveMask(ArrayRef<char> bytes, bool isMatrix) {
  const T kLargestMask = T(isMatrix ? -100 : -1e3);
  T masked = 0;
  bool hasZero = false;
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    if (number == 0) {
      hasZero = true;
      continue;
    }
    if (masked != 0 ? number != masked : !(number <= kLargestMask))
      return false;
    masked = number;
  }
  return masked != 0 && (hasZero || masked <= T(-1e3));
}

// No weight looks like an additive mask, and most tensors show with their first element that they are none.
bool isAdditiveMask(TensorAttr tensor) {
  Type element = tensor.getType().getElementType();
  bool isMatrix = tensor.getType().getRank() >= 2;
  return element.isF64()   ? holdsAdditiveMask<double>(rawBytes(tensor), isMatrix)
         : element.isF32() ? holdsAdditiveMask<float>(rawBytes(tensor), isMatrix)
                           : false;
}

// `model.logit_scale`: scalars of formulas do not have such names. CLIP's temperature is at the root of its module.
bool isModulePath(StringRef name) {
  auto [module, parameter] = name.rsplit('.');
  return name == "logit_scale" || (!parameter.empty() && !llvm::all_of(parameter, llvm::isDigit) &&
                                   llvm::all_of(name, [](char c) { return llvm::isAlnum(c) || c == '_' || c == '.'; }));
}

Choice judge(Value value, bool influences) {
  StringRef name = nameOf(value);
  auto type = cast<RankedTensorType>(value.getType());
  if (!influences)
    return {value, false, "the loss does not depend on it through differentiable operators"};
  if (isExporterName(name) && !isWeightOfProduct(value))
    return {value, false, "a constant under an exporter's own name"};
  if (TensorAttr tensor = constantOf(value); tensor && isAdditiveMask(tensor))
    return {value, false, "a mask: zeros and one large negative number"};
  if (type.getRank() == 0 && !isModulePath(name))
    return {value, false, "a scalar that is not named as a parameter of a module"};
  return {value, true, "a floating-point initializer that the loss depends on"};
}

} // namespace

bool looksLikeParameter(Value initializer) {
  return isFloatTensor(initializer) && judge(initializer, /*influences=*/true).trainable;
}

FailureOr<std::vector<Choice>> chooseTrainable(GraphOp graph, Value loss, const TrainableOptions &options) {
  llvm::DenseSet<Value> influencing = influencingValues(graph, loss);
  std::vector<bool> used(options.train.size() + options.freeze.size());
  auto matchedBy = [&](const std::vector<std::string> &globs, size_t base, StringRef name) -> const std::string * {
    const std::string *found = nullptr;
    for (size_t i = 0; i < globs.size(); ++i)
      if (matchesGlob(globs[i], name)) {
        used[base + i] = true;
        found = &globs[i];
      }
    return found;
  };
  llvm::StringSet<> named;
  for (StringRef name : stringsIn(graph->getAttrDictionary(), kParameters))
    named.insert(name);
  std::vector<Choice> choices;
  auto consider = [&](Value value, bool isInput) {
    StringRef name = nameOf(value);
    if (!isFloatTensor(value))
      return;
    const std::string *wanted = matchedBy(options.train, 0, name);
    const std::string *frozen = matchedBy(options.freeze, options.train.size(), name);
    if (isInput && !wanted && !named.contains(name))
      return;
    Choice choice{value, false, ""};
    if (options.train.empty() && !named.empty())
      choice = {value, named.contains(name),
                named.contains(name) ? "has a gradient in the file" : "has none in the file"};
    else if (options.train.empty())
      choice = judge(value, influencing.contains(value));
    else if (wanted)
      choice = {value, true, "named by --train=" + *wanted};
    else
      choice.reason = "not named by --train";
    if (choice.trainable && frozen)
      choice = {value, false, "named by --freeze=" + *frozen};
    choices.push_back(choice);
  };
  for (BlockArgument argument : graph.getBody().front().getArguments())
    consider(argument, /*isInput=*/true);
  for (auto initializer : graph.getBody().front().getOps<InitializerOp>())
    consider(initializer.getResult(), /*isInput=*/false);
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i]) {
      bool isTrain = i < options.train.size();
      return graph.emitError() << (isTrain ? "--train=" : "--freeze=")
                               << (isTrain ? options.train[i] : options.freeze[i - options.train.size()])
                               << " matches no floating-point initializer" << (isTrain ? " or input" : "")
                               << " of the model";
    }
  return choices;
}

std::optional<int64_t> paddingRow(Value table) {
  auto isLookUp = [&](Operation *user) {
    Node node(user);
    return isa<GatherOp>(user) && node.input(0) == table && node.getInt("axis", 0) == 0;
  };
  TensorAttr tensor = llvm::any_of(table.getUsers(), isLookUp) ? constantOf(table) : TensorAttr();
  if (!tensor || tensor.getType().getRank() != 2 || tensor.getType().getNumElements() == 0)
    return std::nullopt;
  ArrayRef<char> bytes = rawBytes(tensor);
  int64_t rows = tensor.getType().getDimSize(0);
  size_t width = bytes.size() / static_cast<size_t>(rows);
  std::optional<int64_t> found;
  for (int64_t row = 0; row < rows; ++row) {
    if (llvm::any_of(bytes.slice(static_cast<size_t>(row) * width, width), [](char byte) { return byte != 0; }))
      continue;
    if (found || rows == 1)
      return std::nullopt;
    found = row;
  }
  return found;
}

} // namespace recast::gradient
