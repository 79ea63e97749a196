#include "ir/onnx/Types.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
namespace recast::onnx_ir {

Type elementTypeFromOnnx(MLIRContext *context, int dataType) {
  Builder b(context);
  auto unsignedType = [&](unsigned bits) { return IntegerType::get(context, bits, IntegerType::Unsigned); };
  switch (dataType) {
  case onnx::TensorProto::FLOAT:
    return b.getF32Type();
  case onnx::TensorProto::UINT8:
    return unsignedType(8);
  case onnx::TensorProto::INT8:
    return b.getIntegerType(8);
  case onnx::TensorProto::UINT16:
    return unsignedType(16);
  case onnx::TensorProto::INT16:
    return b.getIntegerType(16);
  case onnx::TensorProto::INT32:
    return b.getI32Type();
  case onnx::TensorProto::INT64:
    return b.getI64Type();
  case onnx::TensorProto::STRING:
    return StringType::get(context);
  case onnx::TensorProto::BOOL:
    return b.getI1Type();
  case onnx::TensorProto::FLOAT16:
    return b.getF16Type();
  case onnx::TensorProto::DOUBLE:
    return b.getF64Type();
  case onnx::TensorProto::UINT32:
    return unsignedType(32);
  case onnx::TensorProto::UINT64:
    return unsignedType(64);
  case onnx::TensorProto::COMPLEX64:
    return ComplexType::get(b.getF32Type());
  case onnx::TensorProto::COMPLEX128:
    return ComplexType::get(b.getF64Type());
  case onnx::TensorProto::BFLOAT16:
    return b.getBF16Type();
  case onnx::TensorProto::FLOAT8E4M3FN:
    return Float8E4M3FNType::get(context);
  case onnx::TensorProto::FLOAT8E4M3FNUZ:
    return Float8E4M3FNUZType::get(context);
  case onnx::TensorProto::FLOAT8E5M2:
    return Float8E5M2Type::get(context);
  case onnx::TensorProto::FLOAT8E5M2FNUZ:
    return Float8E5M2FNUZType::get(context);
  case onnx::TensorProto::UINT4:
    return unsignedType(4);
  case onnx::TensorProto::INT4:
    return b.getIntegerType(4);
  case onnx::TensorProto::FLOAT4E2M1:
    return Float4E2M1FNType::get(context);
  case onnx::TensorProto::FLOAT8E8M0:
    return Float8E8M0FNUType::get(context);
  case onnx::TensorProto::UINT2:
    return unsignedType(2);
  case onnx::TensorProto::INT2:
    return b.getIntegerType(2);
  default:
    return {};
  }
}

int elementTypeToOnnx(Type type) {
  // What nearly every tensor holds.
  if (type.isF32())
    return onnx::TensorProto::FLOAT;
  if (type.isBF16())
    return onnx::TensorProto::BFLOAT16;
  if (type.isF16())
    return onnx::TensorProto::FLOAT16;
  if (type.isF64())
    return onnx::TensorProto::DOUBLE;
  if (type.isSignlessInteger(64))
    return onnx::TensorProto::INT64;
  // The table above is the only one: search it.
  for (int number = 1; number <= onnx::TensorProto::DataType_MAX; ++number)
    if (elementTypeFromOnnx(type.getContext(), number) == type)
      return number;
  return onnx::TensorProto::UNDEFINED;
}

StringRef dataTypeName(int dataType) {
  if (!onnx::TensorProto::DataType_IsValid(dataType))
    return "UNDEFINED";
  return onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(dataType));
}

unsigned storageBits(Type type) {
  if (auto complex = dyn_cast<ComplexType>(type))
    return 2 * storageBits(complex.getElementType());
  if (type.isInteger(1))
    return 8;
  return type.isIntOrFloat() ? type.getIntOrFloatBitWidth() : 0;
}

RankedTensorType tensorType(ArrayRef<int64_t> dims, ArrayRef<StringRef> symbols, Type elementType) {
  MLIRContext *context = elementType.getContext();
  auto symbolOf = [&](size_t i) {
    return i < symbols.size() && dims[i] == ShapedType::kDynamic ? symbols[i] : StringRef();
  };
  if (llvm::all_of(llvm::seq(dims.size()), [&](size_t i) { return symbolOf(i).empty(); }))
    return RankedTensorType::get(dims, elementType);
  SmallVector<StringAttr> names;
  for (size_t i = 0; i < dims.size(); ++i)
    names.push_back(StringAttr::get(context, symbolOf(i)));
  return RankedTensorType::get(dims, elementType, DimsAttr::get(context, names));
}

RankedTensorType withoutSymbols(RankedTensorType type) {
  return RankedTensorType::get(type.getShape(), type.getElementType());
}

StringRef dimSymbol(RankedTensorType type, unsigned dim) {
  auto dims = dyn_cast_or_null<DimsAttr>(type.getEncoding());
  return dims ? dims.getNames()[dim].getValue() : StringRef();
}

bool sameDim(RankedTensorType a, unsigned i, RankedTensorType b, unsigned j) {
  if (!a.isDynamicDim(i) || !b.isDynamicDim(j))
    return a.getDimSize(i) == b.getDimSize(j);
  return !dimSymbol(a, i).empty() && dimSymbol(a, i) == dimSymbol(b, j);
}

Type withElementType(Type tensor, Type elementType) {
  if (auto ranked = dyn_cast<RankedTensorType>(tensor))
    return RankedTensorType::get(ranked.getShape(), elementType, ranked.getEncoding());
  if (isa<UnrankedTensorType>(tensor))
    return UnrankedTensorType::get(elementType);
  return tensor;
}

Type elementTypeOf(Value value) {
  auto tensor = value ? dyn_cast<TensorType>(value.getType()) : TensorType();
  return tensor ? tensor.getElementType() : Type();
}

Type typeFromOnnx(MLIRContext *context, const onnx::TypeProto &proto) {
  if (proto.value_case() == onnx::TypeProto::VALUE_NOT_SET)
    return UnknownType::get(context);
  Type element = proto.has_tensor_type() ? elementTypeFromOnnx(context, proto.tensor_type().elem_type()) : Type();
  if (!element)
    return proto.has_tensor_type()
               ? Type(UnknownType::get(context))
               : Type(OpaqueType::get(context, StringAttr::get(context, proto.SerializeAsString())));
  if (!proto.tensor_type().has_shape())
    return UnrankedTensorType::get(element);
  SmallVector<int64_t> dims;
  SmallVector<StringRef> symbols;
  for (const auto &dim : proto.tensor_type().shape().dim()) {
    dims.push_back(dim.has_dim_value() && dim.dim_value() >= 0 ? dim.dim_value() : ShapedType::kDynamic);
    symbols.push_back(dim.has_dim_param() ? StringRef(dim.dim_param()) : StringRef());
  }
  return tensorType(dims, symbols, element);
}

void typeToOnnx(Type type, onnx::TypeProto &proto) {
  proto.Clear();
  if (auto opaque = dyn_cast<OpaqueType>(type)) {
    StringRef bytes = opaque.getProto().getValue();
    proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    return;
  }
  auto tensor = dyn_cast<TensorType>(type);
  if (!tensor)
    return;
  auto *out = proto.mutable_tensor_type();
  out->set_elem_type(elementTypeToOnnx(tensor.getElementType()));
  auto ranked = dyn_cast<RankedTensorType>(type);
  if (!ranked)
    return;
  auto *shape = out->mutable_shape();
  for (unsigned i = 0; i < ranked.getRank(); ++i) {
    auto *dim = shape->add_dim();
    if (!ranked.isDynamicDim(i))
      dim->set_dim_value(ranked.getDimSize(i));
    else if (StringRef symbol = dimSymbol(ranked, i); !symbol.empty())
      dim->set_dim_param(symbol.str());
  }
}

} // namespace recast::onnx_ir
