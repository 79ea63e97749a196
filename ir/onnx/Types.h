// Between ONNX's TypeProto and MLIR types.
#pragma once
#include "ir/onnx/Dialect.h"
#include "onnx/onnx_pb.h"

namespace recast::onnx_ir {

/// TensorProto.DataType to an MLIR element type; null where the number is unknown or UNDEFINED.
mlir::Type elementTypeFromOnnx(mlir::MLIRContext *context, int dataType);
/// The reverse; 0 (UNDEFINED) where ONNX has no such type.
int elementTypeToOnnx(mlir::Type type);
/// "FLOAT", "INT64", ...; "UNDEFINED".
llvm::StringRef dataTypeName(int dataType);
/// Bits of one element in raw_data; 0 for strings.
unsigned storageBits(mlir::Type elementType);

/// Tensor types become tensor types (symbols in the encoding), every other kind !onnx.opaque, an empty one
/// !onnx.unknown.
mlir::Type typeFromOnnx(mlir::MLIRContext *context, const onnx::TypeProto &proto);
/// The reverse. An unknown type leaves `proto` empty.
void typeToOnnx(mlir::Type type, onnx::TypeProto &proto);

/// A tensor type over `dims` (ShapedType::kDynamic where not fixed) and their symbols; symbols of fixed dimensions are
/// dropped, and the encoding is left out where no symbol remains.
mlir::RankedTensorType tensorType(llvm::ArrayRef<int64_t> dims, llvm::ArrayRef<llvm::StringRef> symbols,
                                  mlir::Type elementType);
/// The type without symbols.
mlir::RankedTensorType withoutSymbols(mlir::RankedTensorType type);
/// The symbol of a dimension; "" where it has none.
llvm::StringRef dimSymbol(mlir::RankedTensorType type, unsigned dim);
/// True where both dimensions are known to be equal: same size, or same symbol.
bool sameDim(mlir::RankedTensorType a, unsigned i, mlir::RankedTensorType b, unsigned j);
/// The same type over another element type.
mlir::Type withElementType(mlir::Type tensor, mlir::Type elementType);

inline bool isUnknown(mlir::Type type) { return llvm::isa<UnknownType>(type); }
inline bool isAbsent(mlir::Value value) { return !value || llvm::isa<AbsentType>(value.getType()); }
/// The element type of a tensor, else null.
mlir::Type elementTypeOf(mlir::Value value);
inline bool isFloatTensor(mlir::Value value) {
  mlir::Type type = elementTypeOf(value);
  return type && llvm::isa<mlir::FloatType>(type);
}

} // namespace recast::onnx_ir
