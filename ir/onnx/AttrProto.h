// Between AttributeProto, TensorProto and MLIR attributes.
#pragma once
#include "ir/onnx/Dialect.h"
#include "onnx/onnx_pb.h"
#include <functional>

namespace recast::onnx_ir {

/// Turns a TensorProto into an attribute: the importer's function knows where raw data lives. Null after an error that
/// it reported.
using TensorReader = llvm::function_ref<TensorAttr(const onnx::TensorProto &)>;
/// Writes an attribute into a TensorProto: the exporter's function may leave the data out.
using TensorWriter = llvm::function_ref<void(TensorAttr, onnx::TensorProto &)>;

/// Every kind but GRAPH and GRAPHS, which become regions. Null where `readTensor` failed.
mlir::Attribute attrFromOnnx(mlir::MLIRContext *context, const onnx::AttributeProto &proto, TensorReader readTensor);
/// False for attributes that are no ONNX attributes (names with the prefix `onnx.`).
bool attrToOnnx(mlir::NamedAttribute attr, onnx::AttributeProto &proto, TensorWriter writeTensor);

/// The whole tensor with its data in the message: for small tensors and for handing to the ONNX library.
void tensorToOnnx(TensorAttr tensor, onnx::TensorProto &proto);
/// Puts `bytes` into the typed fields (float_data, int64_data, ...), as `encoding = "typed"` asks.
void setTypedData(onnx::TensorProto &proto, llvm::ArrayRef<char> bytes);
/// The reverse: raw bytes of the typed fields. Empty and false where counts do not fit the element type.
bool typedDataBytes(const onnx::TensorProto &proto, llvm::SmallVectorImpl<char> &bytes);

/// Fields that nothing interprets, by reflection: only those that are set, except `skip` (field numbers). Null if none.
mlir::DictionaryAttr messageRest(mlir::MLIRContext *context, const google::protobuf::Message &message,
                                 llvm::ArrayRef<int> skip);
/// Sets the fields again.
void applyRest(mlir::DictionaryAttr rest, google::protobuf::Message &message);

} // namespace recast::onnx_ir
