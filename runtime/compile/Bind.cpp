// Static types for graph inputs, from what the model declares and what the caller knows.
#include "runtime/compile/Unit.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Like toString, with symbols for the sizes that they stand for: "f32[batch,3]".
std::string describeType(Values &values, Type type) {
  auto tensor = dyn_cast<mlir::TensorType>(type);
  if (!tensor)
    return "of no tensor type";
  DType dtype = values.dtypeOf(tensor.getElementType());
  std::string text = dtype == DType::Undefined ? dataTypeName(elementTypeToOnnx(tensor.getElementType())).str()
                                               : std::string(name(dtype));
  auto ranked = dyn_cast<RankedTensorType>(type);
  if (!ranked)
    return text + " of any shape";
  text += '[';
  for (unsigned i = 0; i < ranked.getRank(); ++i) {
    StringRef symbol = dimSymbol(ranked, i);
    text += (i ? "," : "") + (!ranked.isDynamicDim(i) ? std::to_string(ranked.getDimSize(i))
                              : symbol.empty()        ? "?"
                                                      : symbol.str());
  }
  return text + ']';
}

class Binder {
public:
  Binder(Unit &unit, const CompileOptions &options) : unit(unit), options(options) {}
  LogicalResult run();

private:
  struct Input {
    BlockArgument argument;
    std::string name;
    TensorAttr initial;
    bool isState, isConstant;
  };

  InFlightDiagnostic error() { return emitError(UnknownLoc::get(unit.module.getContext())); }
  void listInputs();
  LogicalResult bindNamedSizes();
  LogicalResult bindGiven(const Input &input, const TensorType &given);
  LogicalResult bindSize(StringRef symbol, int64_t size, const std::string &origin);
  LogicalResult setTypes();
  void makeConstant(const Input &input);

  Unit &unit;
  const CompileOptions &options;
  std::vector<Input> inputs;
  llvm::StringMap<std::string> origins; ///< Of the sizes: for messages.
};

void Binder::listInputs() {
  auto defaults = unit.graph.getInfo().getAs<ArrayAttr>("defaults");
  for (BlockArgument argument : unit.block.getArguments()) {
    Input input{argument, nameOf(argument).str(), {}, false, false};
    if (defaults)
      input.initial = dyn_cast<TensorAttr>(defaults[argument.getArgNumber()]);
    input.isState = unit.state.contains(input.name);
    input.isConstant = input.initial && !input.isState && !options.inputs.contains(input.name);
    unit.initial.push_back(input.initial);
    inputs.push_back(std::move(input));
  }
}

LogicalResult Binder::bindSize(StringRef symbol, int64_t size, const std::string &origin) {
  auto [at, isNew] = unit.sizes.try_emplace(symbol, size);
  if (isNew)
    origins[symbol] = origin;
  else if (at->second != size)
    return error() << "the dimension '" << symbol << "' is " << at->second << " by " << origins[symbol] << ", but "
                   << size << " by " << origin;
  return success();
}

LogicalResult Binder::bindNamedSizes() {
  std::vector<std::string> known;
  for (const Input &input : inputs)
    if (auto type = dyn_cast<RankedTensorType>(input.argument.getType()))
      for (unsigned i = 0; i < type.getRank(); ++i)
        if (std::string symbol = dimSymbol(type, i).str(); !symbol.empty() && !llvm::is_contained(known, symbol))
          known.push_back(symbol);
  for (const auto &[symbol, size] : options.dims) {
    if (!llvm::is_contained(known, symbol))
      return error() << "--dim=" << symbol << "=" << size << ": no input has a dimension of this name; "
                     << (known.empty() ? "all sizes are fixed" : "there are '" + llvm::join(known, "', '") + "'");
    if (size < 0)
      return error() << "--dim=" << symbol << "=" << size << ": a size is not negative";
    if (failed(bindSize(symbol, size, "--dim")))
      return failure();
  }
  return success();
}

LogicalResult Binder::bindGiven(const Input &input, const TensorType &given) {
  Value argument = input.argument;
  Type declared = input.isState && input.initial ? Type(input.initial.getType()) : argument.getType();
  auto tensor = dyn_cast<mlir::TensorType>(declared);
  auto ranked = dyn_cast<RankedTensorType>(declared);
  bool fits = tensor && unit.values.dtypeOf(tensor.getElementType()) == given.dtype;
  if (fits && ranked) {
    fits = ranked.getRank() == given.rank();
    for (unsigned i = 0; fits && i < ranked.getRank(); ++i)
      fits = ranked.isDynamicDim(i) || given.dims[i] < 0 || ranked.getDimSize(i) == given.dims[i];
  }
  if (!fits)
    return error() << "input '" << input.name << "' is " << describeType(unit.values, declared)
                   << " in the model, but the data gives " << toString(given);
  if (!ranked) {
    if (llvm::none_of(given.dims, [](int64_t dim) { return dim < 0; }))
      argument.setType(RankedTensorType::get(given.dims, tensor.getElementType()));
    return success();
  }
  SmallVector<int64_t> dims(ranked.getShape());
  SmallVector<StringRef> symbols;
  for (unsigned i = 0; i < ranked.getRank(); ++i) {
    StringRef symbol = dimSymbol(ranked, i);
    symbols.push_back(symbol);
    if (!ranked.isDynamicDim(i) || given.dims[i] < 0)
      continue;
    if (!symbol.empty() &&
        failed(bindSize(symbol, given.dims[i], "input '" + input.name + "' (" + toString(given) + ")")))
      return failure();
    dims[i] = given.dims[i];
  }
  argument.setType(tensorType(dims, symbols, ranked.getElementType()));
  return success();
}

void Binder::makeConstant(const Input &input) {
  OpBuilder b = OpBuilder::atBlockBegin(&unit.block);
  OperationState state(b.getUnknownLoc(), InitializerOp::getOperationName());
  state.addAttribute("value", input.initial);
  state.addAttribute("onnx.outputs", stringArray(b.getContext(), {input.name}));
  state.addTypes(withoutSymbols(input.initial.getType()));
  Value value = b.create(state)->getResult(0);
  Value(input.argument).replaceAllUsesWith(value);
}

LogicalResult Binder::setTypes() {
  std::vector<std::string> symbols, unnamed;
  llvm::StringMap<std::string> users;
  for (const Input &input : inputs) {
    if (input.isConstant) {
      makeConstant(input);
      continue;
    }
    Value argument = input.argument;
    if (input.isState && input.initial) {
      argument.setType(withoutSymbols(input.initial.getType()));
      continue;
    }
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (!type) {
      TensorType none;
      std::string problem = isa<UnrankedTensorType>(argument.getType())
                                ? "its shape is not declared, and no data gives one"
                                : unit.values.typeOf(argument, none);
      return error() << "input '" << input.name << "': " << problem;
    }
    SmallVector<int64_t> dims(type.getShape());
    for (unsigned i = 0; i < type.getRank(); ++i) {
      std::string symbol = dimSymbol(type, i).str();
      if (!type.isDynamicDim(i))
        continue;
      if (auto size = unit.sizes.find(symbol); !symbol.empty() && size != unit.sizes.end())
        dims[i] = size->second;
      else if (symbol.empty())
        unnamed.push_back("dimension " + std::to_string(i) + " of input '" + input.name + "'");
      else if (std::string &list = users[symbol]; list.empty()) {
        symbols.push_back(symbol);
        list = "'" + input.name + "'";
      } else
        list += ", '" + input.name + "'";
    }
    argument.setType(RankedTensorType::get(dims, type.getElementType()));
  }
  std::vector<std::string> parts;
  for (const std::string &symbol : symbols)
    parts.push_back("'" + symbol + "' (of input " + users[symbol] + ")");
  if (!symbols.empty())
    return error() << "sizes of dimensions are not known: " << llvm::join(parts, ", ")
                   << "; set each with --dim=NAME=N, or give data for the inputs";
  if (!unnamed.empty())
    return error() << "sizes of dimensions are not known: " << llvm::join(unnamed, ", ")
                   << "; they have no name that --dim=NAME=N could set, so that only data for the inputs tells them";
  return success();
}

LogicalResult Binder::run() {
  listInputs();
  if (failed(bindNamedSizes()))
    return failure();
  for (const auto &[name, type] : options.inputs) {
    auto found = llvm::find_if(inputs, [&](const Input &input) { return input.name == name; });
    if (found == inputs.end())
      return error() << "the model has no input '" << name << "'";
    if (failed(bindGiven(*found, type)))
      return failure();
  }
  return setTypes();
}

} // namespace

LogicalResult bindInputs(Unit &unit, const CompileOptions &options) { return Binder(unit, options).run(); }

} // namespace recast::compile
