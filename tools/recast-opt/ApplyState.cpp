#include "tools/recast-opt/ApplyState.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "runtime/session/Safetensors.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::tools {

namespace {

// The tensor of the file called `name`, in the type that the model has for it; null where the file has none.
FailureOr<TensorAttr> valueFor(ModuleOp module, const Safetensors &file, const std::string &path, StringRef name,
                               RankedTensorType type) {
  auto found = file.tensors.find(std::string_view(name));
  if (found == file.tensors.end())
    return TensorAttr();
  const HostTensor &tensor = found->second;
  if (ArrayRef(tensor.type.dims) != type.getShape())
    return module.emitError() << path << ": tensor '" << name << "' is " << toString(tensor.type)
                              << ", the model's tensor of that name has another shape";
  Type element = elementTypeFromOnnx(module.getContext(), static_cast<int>(tensor.type.dtype));
  ArrayRef<char> bytes(reinterpret_cast<const char *>(tensor.data), tensor.type.bytes());
  TensorAttr value = viewTensor(RankedTensorType::get(type.getShape(), element), bytes, tensor.owner);
  return element == type.getElementType() ? value : convertFloat(value, type.getElementType());
}

} // namespace

LogicalResult applyState(ModuleOp module, const std::string &path, bool useAverages) {
  auto file = readSafetensors(path);
  if (!file)
    return module.emitError() << file.message();
  size_t applied = 0, averages = 0;
  GraphOp graph = mainGraph(module);
  Block &block = graph.getBody().front();
  for (auto initializer : block.getOps<InitializerOp>()) {
    StringRef name = nameOf(initializer.getResult());
    RankedTensorType type = initializer.getValue().getType();
    FailureOr<TensorAttr> value = TensorAttr();
    if (useAverages)
      value = valueFor(module, *file, path, (name + ".ema").str(), type);
    if (succeeded(value) && *value)
      ++averages;
    else if (succeeded(value))
      value = valueFor(module, *file, path, name, type);
    if (failed(value))
      return failure();
    if (*value) {
      initializer.setValueAttr(*value);
      ++applied;
    }
  }
  if (useAverages && averages == 0)
    return module.emitError() << path << ": holds no moving averages ('<parameter>.ema'): build the step model with "
                              << "--ema=DECAY, or leave out --weights=ema";
  // State inputs, and parameters that a form of model has as inputs.
  SmallVector<Attribute> defaults(block.getNumArguments(), UnitAttr::get(module.getContext()));
  if (auto given = graph.getInfo().getAs<ArrayAttr>("defaults"))
    defaults.assign(given.begin(), given.end());
  size_t before = applied;
  for (BlockArgument argument : block.getArguments()) {
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (!type || !type.hasStaticShape())
      continue;
    auto value = valueFor(module, *file, path, nameOf(argument), type);
    if (failed(value))
      return failure();
    if (*value) {
      defaults[argument.getArgNumber()] = *value;
      ++applied;
    }
  }
  if (applied > before)
    graph.setInfoAttr(withEntry(graph.getInfo(), "defaults", ArrayAttr::get(module.getContext(), defaults)));
  if (applied == 0)
    return module.emitError() << path << ": holds no tensor with the name of one of the model's initializers or inputs";
  return success();
}

} // namespace recast::tools
