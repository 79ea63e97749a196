#include "runtime/compile/Values.h"
#include "ir/onnx/Node.h"
#include "ir/train/Dialect.h"
#include "llvm/Support/MathExtras.h"
#include <cstring>
#include <new>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Below this many bytes a copy costs less than keeping track of who owns the original.
constexpr size_t kViewBytes = 4096;
constexpr std::align_val_t kAlignment{64};
/// 2^48 bytes: what a process can address.
constexpr int64_t kMostBytes = int64_t(1) << 48;

std::string quoted(Value value) { return "'" + nameOf(value).str() + "'"; }

bool fitsMemory(ArrayRef<int64_t> dims, size_t elementBytes) {
  int64_t bytes = static_cast<int64_t>(elementBytes);
  for (int64_t dim : dims)
    if (dim == 0)
      return true;
  for (int64_t dim : dims)
    if (llvm::MulOverflow(bytes, dim, bytes) || bytes > kMostBytes)
      return false;
  return true;
}

} // namespace

std::shared_ptr<std::byte> allocate(size_t bytes) {
  auto *memory = static_cast<std::byte *>(::operator new(std::max<size_t>(bytes, 1), kAlignment));
  return {memory, [](std::byte *p) { ::operator delete(p, kAlignment); }};
}

DType Values::dtypeOf(Type element) {
  if (!element)
    return DType::Undefined;
  auto [at, isNew] = dtypes.try_emplace(element, DType::Undefined);
  if (isNew) // DType has ONNX's numbers.
    if (auto type = static_cast<DType>(elementTypeToOnnx(element)); byteSize(type) != 0)
      at->second = type;
  return at->second;
}

std::string Values::typeOf(Value value, TensorType &type) {
  type = {};
  if (isAbsent(value))
    return "";
  Type given = value.getType();
  if (auto scaled = dyn_cast<train::ScaledType>(given))
    given = scaled.getTensor();
  if (isa<onnx_ir::OpaqueType>(given))
    return quoted(value) + " is a sequence, an optional, a map or a sparse tensor, which this version does not run";
  auto tensor = dyn_cast<mlir::TensorType>(given);
  if (!tensor)
    return "the type of " + quoted(value) + " is not known";
  DType dtype = dtypeOf(tensor.getElementType());
  if (dtype == DType::Undefined)
    return quoted(value) + " has the element type " + dataTypeName(elementTypeToOnnx(tensor.getElementType())).str() +
           ", which this version does not run";
  auto ranked = dyn_cast<RankedTensorType>(given);
  if (!ranked || !ranked.hasStaticShape())
    return "the shape of " + quoted(value) + " depends on data; a plan needs fixed shapes";
  if (!fitsMemory(ranked.getShape(), byteSize(dtype)))
    return quoted(value) + " is larger than any memory";
  type = {dtype, std::vector<int64_t>(ranked.getShape().begin(), ranked.getShape().end())};
  return "";
}

Data Values::dataOf(TensorAttr tensor) {
  DType dtype = dtypeOf(tensor.getType().getElementType());
  ArrayRef<char> bytes = rawBytes(tensor);
  size_t width = byteSize(dtype);
  if (width == 0 || bytes.size() != static_cast<size_t>(tensor.getType().getNumElements()) * width)
    return {};
  if (bytes.size() >= kViewBytes && reinterpret_cast<uintptr_t>(bytes.data()) % width == 0)
    return {bytes.data(), model};
  std::shared_ptr<std::byte> copy = allocate(bytes.size());
  if (!bytes.empty())
    std::memcpy(copy.get(), bytes.data(), bytes.size());
  return {copy.get(), copy, bytes.data()};
}

const Constant *Values::constant(Value value) {
  if (isAbsent(value))
    return nullptr;
  if (auto at = constants.find(key(value)); at != constants.end())
    return &at->second;
  TensorAttr tensor = constantOf(value);
  if (!tensor)
    return nullptr;
  Data data = dataOf(tensor);
  if (!data.bytes)
    return nullptr;
  ArrayRef<int64_t> dims = tensor.getType().getShape();
  TensorType type{dtypeOf(tensor.getType().getElementType()), std::vector<int64_t>(dims.begin(), dims.end())};
  return &constants.insert_or_assign(key(value), Constant{std::move(type), std::move(data)}).first->second;
}

} // namespace recast::compile
