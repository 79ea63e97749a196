#include "ir/onnx/TensorData.h"
#include "ir/onnx/Node.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/ADT/APFloat.h"
#include <cmath>
#include <cstdlib>
#include <cstring>

using namespace mlir;
namespace recast::onnx_ir {

ArrayRef<char> rawBytes(TensorAttr tensor) {
  if (auto array = dyn_cast<DenseArrayAttr>(tensor.getPayload()))
    return array.getRawData();
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(tensor.getPayload()))
    if (AsmResourceBlob *blob = resource.getRawHandle().getBlob())
      return blob->getData();
  return {};
}

static DictionaryAttr orEmpty(MLIRContext *context, DictionaryAttr extra) {
  return extra ? extra : DictionaryAttr::get(context);
}

static bool fitsInline(RankedTensorType type) {
  Type element = type.getElementType();
  return type.getNumElements() <= kInlineElems && element.isIntOrFloat() && storageBits(element) % 8 == 0;
}

static TensorAttr inlineTensor(RankedTensorType type, ArrayRef<char> bytes, DictionaryAttr extra) {
  auto payload = DenseArrayAttr::get(type.getElementType(), type.getNumElements(), bytes);
  return TensorAttr::get(type.getContext(), type, payload, orEmpty(type.getContext(), extra));
}

static TensorAttr resourceTensor(RankedTensorType type, AsmResourceBlob blob, DictionaryAttr extra, StringRef key) {
  auto payload = DenseResourceElementsAttr::get(type, key, std::move(blob));
  return TensorAttr::get(type.getContext(), type, payload, orEmpty(type.getContext(), extra));
}

TensorAttr makeTensor(RankedTensorType type, ArrayRef<char> bytes, DictionaryAttr extra, StringRef key) {
  if (fitsInline(type))
    return inlineTensor(type, bytes, extra);
  return resourceTensor(type, HeapAsmResourceBlob::allocateAndCopyWithAlign(bytes, 64, /*dataIsMutable=*/false), extra,
                        key);
}

TensorAttr viewTensor(RankedTensorType type, ArrayRef<char> bytes, std::shared_ptr<const void> owner,
                      DictionaryAttr extra, StringRef key) {
  if (fitsInline(type))
    return inlineTensor(type, bytes, extra);
  AsmResourceBlob blob(
      bytes, /*dataAlignment=*/1, [owner = std::move(owner)](void *, size_t, size_t) {},
      /*dataIsMutable=*/false);
  return resourceTensor(type, std::move(blob), extra, key);
}

namespace {

double readElement(Type type, const char *bytes, unsigned width) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, width);
  if (auto floating = dyn_cast<FloatType>(type)) {
    APFloat value(floating.getFloatSemantics(), APInt(floating.getWidth(), bits));
    bool inexact;
    value.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &inexact);
    return value.convertToDouble();
  }
  APInt value(8 * width, bits);
  return type.isUnsignedInteger() || type.isInteger(1) ? value.roundToDouble(false) : value.roundToDouble(true);
}

} // namespace

std::optional<SmallVector<double>> asDoubles(TensorAttr tensor) {
  Type type = tensor.getType().getElementType();
  unsigned bits = storageBits(type);
  ArrayRef<char> bytes = rawBytes(tensor);
  if (!type.isIntOrFloat() || bits % 8 || bits == 0)
    return std::nullopt;
  unsigned width = bits / 8;
  SmallVector<double> values;
  values.reserve(bytes.size() / width);
  for (size_t at = 0; at + width <= bytes.size(); at += width) {
    if (type.isF32()) {
      float value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      values.push_back(value);
    } else if (type.isF64()) {
      double value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      values.push_back(value);
    } else {
      values.push_back(readElement(type, bytes.data() + at, width));
    }
  }
  return values;
}

std::optional<SmallVector<int64_t>> asInts(TensorAttr tensor) {
  Type type = tensor.getType().getElementType();
  unsigned bits = storageBits(type);
  if (!type.isInteger() || bits % 8 || bits == 0)
    return std::nullopt;
  unsigned width = bits / 8;
  ArrayRef<char> bytes = rawBytes(tensor);
  SmallVector<int64_t> values;
  values.reserve(bytes.size() / width);
  for (size_t at = 0; at + width <= bytes.size(); at += width) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, width);
    APInt value(bits, word);
    bool isSigned = !type.isUnsignedInteger() && !type.isInteger(1);
    values.push_back(isSigned ? value.getSExtValue() : static_cast<int64_t>(value.getZExtValue()));
  }
  return values;
}

void encode(Type type, ArrayRef<double> values, SmallVectorImpl<char> &bytes) {
  unsigned width = storageBits(type) / 8;
  bytes.reserve(bytes.size() + values.size() * width);
  for (double x : values) {
    uint64_t word = 0;
    if (auto floating = dyn_cast<FloatType>(type)) {
      APFloat value(x);
      bool inexact;
      value.convert(floating.getFloatSemantics(), APFloat::rmNearestTiesToEven, &inexact);
      word = value.bitcastToAPInt().getZExtValue();
    } else if (type.isInteger(1)) {
      word = x != 0;
    } else {
      word = static_cast<uint64_t>(static_cast<int64_t>(x));
    }
    bytes.append(reinterpret_cast<const char *>(&word), reinterpret_cast<const char *>(&word) + width);
  }
}

TensorAttr splatTensor(RankedTensorType type, double value) {
  if (!fitsInline(type) && value == 0 && !std::signbit(value)) {
    // Pages that nothing writes to take no memory.
    size_t size = static_cast<size_t>(type.getNumElements()) * storageBits(type.getElementType()) / 8;
    std::shared_ptr<const void> zeros(std::calloc(size, 1),
                                      [](const void *data) { std::free(const_cast<void *>(data)); });
    if (zeros)
      return viewTensor(type, ArrayRef(static_cast<const char *>(zeros.get()), size), zeros);
  }
  SmallVector<char> bytes, all;
  encode(type.getElementType(), value, bytes);
  all.reserve(bytes.size() * type.getNumElements());
  for (int64_t i = 0; i < type.getNumElements(); ++i)
    all.append(bytes.begin(), bytes.end());
  return makeTensor(type, all);
}

TensorAttr intsTensor(MLIRContext *context, ArrayRef<int64_t> values) {
  auto type = RankedTensorType::get({static_cast<int64_t>(values.size())}, IntegerType::get(context, 64));
  return makeTensor(type, ArrayRef(reinterpret_cast<const char *>(values.data()), values.size() * sizeof(int64_t)));
}

TensorAttr convertFloat(TensorAttr tensor, Type elementType) {
  auto values = asDoubles(tensor);
  SmallVector<char> bytes;
  encode(elementType, *values, bytes);
  auto type = RankedTensorType::get(tensor.getType().getShape(), elementType);
  NamedAttrList extra(tensor.getExtra());
  extra.erase("external");
  extra.erase("encoding");
  if (auto rest = tensor.getExtra().getAs<DictionaryAttr>("rest")) {
    NamedAttrList fields(rest); // Where the old bytes lie says nothing of the new ones.
    fields.erase("data_location");
    fields.erase("external_data");
    extra.set("rest", fields.getDictionary(tensor.getContext()));
  }
  auto resource = dyn_cast<DenseResourceElementsAttr>(tensor.getPayload());
  std::string key = resource ? (resource.getRawHandle().getKey() + "_converted").str() : "tensor";
  return makeTensor(type, bytes, extra.getDictionary(tensor.getContext()), key);
}

TensorAttr constantOf(Value value) {
  Operation *op = value ? value.getDefiningOp() : nullptr;
  if (!op)
    return {};
  if (auto initializer = dyn_cast<InitializerOp>(op))
    return initializer.getValue();
  if (!isa<ConstantOp>(op))
    return {};
  MLIRContext *context = op->getContext();
  auto scalarOrVector = [&](Type element, ArrayRef<int64_t> dims, ArrayRef<char> bytes) {
    return makeTensor(RankedTensorType::get(dims, element), bytes);
  };
  Builder b(context);
  for (NamedAttribute attr : op->getAttrs()) {
    StringRef name = attr.getName().strref();
    if (name == "value")
      return dyn_cast<TensorAttr>(attr.getValue());
    if (auto number = dyn_cast<FloatAttr>(attr.getValue()); number && name == "value_float")
      return splatTensor(RankedTensorType::get({}, b.getF32Type()), number.getValueAsDouble());
    if (auto number = dyn_cast<IntegerAttr>(attr.getValue()); number && name == "value_int") {
      int64_t word = number.getInt();
      return scalarOrVector(b.getI64Type(), {}, ArrayRef(reinterpret_cast<const char *>(&word), sizeof word));
    }
    if (auto numbers = dyn_cast<DenseI64ArrayAttr>(attr.getValue()); numbers && name == "value_ints")
      return scalarOrVector(b.getI64Type(), {numbers.size()}, numbers.getRawData());
    if (auto numbers = dyn_cast<DenseF32ArrayAttr>(attr.getValue()); numbers && name == "value_floats")
      return scalarOrVector(b.getF32Type(), {numbers.size()}, numbers.getRawData());
  }
  return {};
}

std::optional<SmallVector<int64_t>> constantInts(Value value) {
  TensorAttr tensor = constantOf(value);
  return tensor ? asInts(tensor) : std::nullopt;
}

std::optional<double> constantScalar(Value value, bool splat) {
  TensorAttr tensor = constantOf(value);
  if (!tensor || (!splat && tensor.getType().getNumElements() != 1))
    return std::nullopt;
  auto values = asDoubles(tensor);
  if (!values || values->empty() || !llvm::all_equal(*values))
    return std::nullopt;
  return values->front();
}

} // namespace recast::onnx_ir
