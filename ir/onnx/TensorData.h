// Reading and making the data of #onnx.tensor attributes.
#pragma once
#include "ir/onnx/Dialect.h"
#include "ir/onnx/Types.h"
#include <functional>
#include <memory>
#include <optional>

namespace recast::onnx_ir {

/// Tensors of up to this many elements are kept in the attribute itself and print as numbers; larger ones are
/// resources.
inline constexpr int64_t kInlineElems = 64;

/// The bytes as raw_data holds them (little endian, dense). Possibly unaligned: a view into a mapped file. Empty for
/// strings and sparse tensors, which have no raw form.
llvm::ArrayRef<char> rawBytes(TensorAttr tensor);

/// Copies `bytes`. A large tensor is a resource with the key `key`, or `key_1`, ... where that is taken: many tensors
/// with one key take quadratic time, so give them keys of their own.
TensorAttr makeTensor(mlir::RankedTensorType type, llvm::ArrayRef<char> bytes, mlir::DictionaryAttr extra = nullptr,
                      llvm::StringRef key = "tensor");
/// Refers to `bytes`, which `owner` keeps alive.
TensorAttr viewTensor(mlir::RankedTensorType type, llvm::ArrayRef<char> bytes, std::shared_ptr<const void> owner,
                      mlir::DictionaryAttr extra = nullptr, llvm::StringRef key = "tensor");
/// A tensor filled with one value, converted to the element type (numbers and bool only).
TensorAttr splatTensor(mlir::RankedTensorType type, double value);
TensorAttr intsTensor(mlir::MLIRContext *context, llvm::ArrayRef<int64_t> values);

/// Elements as doubles or 64-bit integers. Nothing for types that are no numbers. Precondition on size: none, but the
/// whole tensor is copied.
std::optional<llvm::SmallVector<double>> asDoubles(TensorAttr tensor);
std::optional<llvm::SmallVector<int64_t>> asInts(TensorAttr tensor);
/// Writes doubles in the element type, with one rounding.
void encode(mlir::Type elementType, llvm::ArrayRef<double> values, llvm::SmallVectorImpl<char> &bytes);
/// The tensor in another floating-point type.
TensorAttr convertFloat(TensorAttr tensor, mlir::Type elementType);

/// The constant that a value is: of an initializer (that is no graph input) or a Constant node. Null otherwise.
TensorAttr constantOf(mlir::Value value);
/// A constant integer vector or scalar.
std::optional<llvm::SmallVector<int64_t>> constantInts(mlir::Value value);
/// A constant with one element, or whose elements are all equal where `splat`.
std::optional<double> constantScalar(mlir::Value value, bool splat = false);

} // namespace recast::onnx_ir
