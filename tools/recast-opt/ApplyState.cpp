#include "tools/recast-opt/ApplyState.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "runtime/session/Safetensors.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::tools {

LogicalResult applyState(ModuleOp module, const std::string &path, bool useAverages) {
  auto file = readSafetensors(path);
  if (!file)
    return module.emitError() << file.message();
  size_t applied = 0, averages = 0;
  GraphOp graph = mainGraph(module);
  for (auto initializer : graph.getBody().front().getOps<InitializerOp>()) {
    StringRef name = nameOf(initializer.getResult());
    auto found = useAverages ? file->tensors.find((name + ".ema").str()) : file->tensors.end();
    averages += found != file->tensors.end();
    if (found == file->tensors.end())
      found = file->tensors.find(std::string_view(name));
    if (found == file->tensors.end())
      continue;
    const HostTensor &tensor = found->second;
    RankedTensorType type = initializer.getValue().getType();
    if (ArrayRef(tensor.type.dims) != type.getShape())
      return module.emitError() << path << ": tensor '" << name << "' is " << toString(tensor.type)
                                << ", the model's initializer of that name has another shape";
    Type element = elementTypeFromOnnx(module.getContext(), static_cast<int>(tensor.type.dtype));
    ArrayRef<char> bytes(reinterpret_cast<const char *>(tensor.data), tensor.type.bytes());
    TensorAttr value = viewTensor(RankedTensorType::get(type.getShape(), element), bytes, tensor.owner);
    initializer.setValueAttr(element == type.getElementType() ? value : convertFloat(value, type.getElementType()));
    ++applied;
  }
  if (useAverages && averages == 0)
    return module.emitError() << path << ": holds no moving averages ('<parameter>.ema'): build the step model with "
                              << "--ema=DECAY, or leave out --weights=ema";
  if (applied == 0)
    return module.emitError() << path << ": holds no tensor with the name of one of the model's initializers";
  return success();
}

} // namespace recast::tools
