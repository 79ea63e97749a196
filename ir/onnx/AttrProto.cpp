#include "ir/onnx/AttrProto.h"
#include "ir/onnx/TensorData.h"
#include "ir/onnx/Types.h"
#include "mlir/IR/Builders.h"
#include <cstring>

using namespace mlir;
namespace recast::onnx_ir {

Attribute attrFromOnnx(MLIRContext *context, const onnx::AttributeProto &proto, TensorReader readTensor) {
  Builder b(context);
  if (!proto.ref_attr_name().empty())
    return RefAttr::get(context, b.getStringAttr(proto.ref_attr_name()), proto.type());
  auto opaque = [&]() -> Attribute { return ProtoAttr::get(context, b.getStringAttr(proto.SerializeAsString())); };
  // A value left at its default without being set would come back set: such attributes are kept as they are.
  bool unset = (proto.type() == onnx::AttributeProto::FLOAT && !proto.has_f()) ||
               (proto.type() == onnx::AttributeProto::INT && !proto.has_i()) ||
               (proto.type() == onnx::AttributeProto::STRING && !proto.has_s());
  if (proto.has_doc_string() || unset)
    return opaque();
  switch (proto.type()) {
  case onnx::AttributeProto::FLOAT:
    return b.getF32FloatAttr(proto.f());
  case onnx::AttributeProto::INT:
    return b.getI64IntegerAttr(proto.i());
  case onnx::AttributeProto::STRING:
    return b.getStringAttr(proto.s());
  case onnx::AttributeProto::TENSOR:
    return readTensor(proto.t());
  case onnx::AttributeProto::FLOATS:
    return b.getDenseF32ArrayAttr(ArrayRef(proto.floats().data(), proto.floats_size()));
  case onnx::AttributeProto::INTS:
    return b.getDenseI64ArrayAttr(ArrayRef<int64_t>(proto.ints().data(), proto.ints_size()));
  case onnx::AttributeProto::STRINGS: {
    SmallVector<Attribute> strings;
    for (const std::string &s : proto.strings())
      strings.push_back(b.getStringAttr(s));
    return b.getArrayAttr(strings);
  }
  default:
    return opaque();
  }
}

bool attrToOnnx(NamedAttribute attr, onnx::AttributeProto &proto, TensorWriter writeTensor) {
  if (attr.getName().strref().starts_with("onnx."))
    return false;
  Attribute value = attr.getValue();
  if (auto opaque = dyn_cast<ProtoAttr>(value)) {
    StringRef bytes = opaque.getBytes().getValue();
    return proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }
  proto.set_name(attr.getName().str());
  if (auto ref = dyn_cast<RefAttr>(value)) {
    proto.set_ref_attr_name(ref.getName().str());
    proto.set_type(static_cast<onnx::AttributeProto::AttributeType>(ref.getKind()));
  } else if (auto number = dyn_cast<FloatAttr>(value)) {
    proto.set_type(onnx::AttributeProto::FLOAT);
    proto.set_f(number.getValue().convertToFloat());
  } else if (auto number = dyn_cast<IntegerAttr>(value)) {
    proto.set_type(onnx::AttributeProto::INT);
    proto.set_i(number.getInt());
  } else if (auto string = dyn_cast<StringAttr>(value)) {
    proto.set_type(onnx::AttributeProto::STRING);
    proto.set_s(string.str());
  } else if (auto tensor = dyn_cast<TensorAttr>(value)) {
    proto.set_type(onnx::AttributeProto::TENSOR);
    writeTensor(tensor, *proto.mutable_t());
  } else if (auto numbers = dyn_cast<DenseF32ArrayAttr>(value)) {
    proto.set_type(onnx::AttributeProto::FLOATS);
    proto.mutable_floats()->Add(numbers.asArrayRef().begin(), numbers.asArrayRef().end());
  } else if (auto numbers = dyn_cast<DenseI64ArrayAttr>(value)) {
    proto.set_type(onnx::AttributeProto::INTS);
    proto.mutable_ints()->Add(numbers.asArrayRef().begin(), numbers.asArrayRef().end());
  } else if (auto strings = dyn_cast<ArrayAttr>(value)) {
    proto.set_type(onnx::AttributeProto::STRINGS);
    for (Attribute s : strings)
      proto.add_strings(cast<StringAttr>(s).str());
  } else {
    return false;
  }
  return true;
}

namespace {

template <typename T, typename Field> void appendAs(const Field &field, SmallVectorImpl<char> &bytes) {
  for (auto item : field) {
    T value = static_cast<T>(item);
    bytes.append(reinterpret_cast<const char *>(&value), reinterpret_cast<const char *>(&value) + sizeof value);
  }
}

template <typename T, typename Field> void splitAs(ArrayRef<char> bytes, Field *field) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    field->Add(value);
  }
}

} // namespace

bool typedDataBytes(const onnx::TensorProto &proto, SmallVectorImpl<char> &bytes) {
  switch (proto.data_type()) {
  case onnx::TensorProto::FLOAT:
  case onnx::TensorProto::COMPLEX64:
    appendAs<float>(proto.float_data(), bytes);
    return true;
  case onnx::TensorProto::DOUBLE:
  case onnx::TensorProto::COMPLEX128:
    appendAs<double>(proto.double_data(), bytes);
    return true;
  case onnx::TensorProto::INT64:
    appendAs<int64_t>(proto.int64_data(), bytes);
    return true;
  case onnx::TensorProto::UINT32:
    appendAs<uint32_t>(proto.uint64_data(), bytes);
    return true;
  case onnx::TensorProto::UINT64:
    appendAs<uint64_t>(proto.uint64_data(), bytes);
    return true;
  case onnx::TensorProto::INT32:
    appendAs<int32_t>(proto.int32_data(), bytes);
    return true;
  case onnx::TensorProto::UINT16:
  case onnx::TensorProto::INT16:
  case onnx::TensorProto::FLOAT16:
  case onnx::TensorProto::BFLOAT16:
    appendAs<uint16_t>(proto.int32_data(), bytes);
    return true;
  default: // 8 bits and less: one int32 holds one byte of the packed form.
    appendAs<uint8_t>(proto.int32_data(), bytes);
    return true;
  }
}

void setTypedData(onnx::TensorProto &proto, ArrayRef<char> bytes) {
  switch (proto.data_type()) {
  case onnx::TensorProto::FLOAT:
  case onnx::TensorProto::COMPLEX64:
    return splitAs<float>(bytes, proto.mutable_float_data());
  case onnx::TensorProto::DOUBLE:
  case onnx::TensorProto::COMPLEX128:
    return splitAs<double>(bytes, proto.mutable_double_data());
  case onnx::TensorProto::INT64:
    return splitAs<int64_t>(bytes, proto.mutable_int64_data());
  case onnx::TensorProto::UINT32:
    return splitAs<uint32_t>(bytes, proto.mutable_uint64_data());
  case onnx::TensorProto::UINT64:
    return splitAs<uint64_t>(bytes, proto.mutable_uint64_data());
  case onnx::TensorProto::INT32:
    return splitAs<int32_t>(bytes, proto.mutable_int32_data());
  case onnx::TensorProto::INT16:
    return splitAs<int16_t>(bytes, proto.mutable_int32_data());
  case onnx::TensorProto::UINT16:
  case onnx::TensorProto::FLOAT16:
  case onnx::TensorProto::BFLOAT16:
    return splitAs<uint16_t>(bytes, proto.mutable_int32_data());
  case onnx::TensorProto::INT8:
    return splitAs<int8_t>(bytes, proto.mutable_int32_data());
  default:
    return splitAs<uint8_t>(bytes, proto.mutable_int32_data());
  }
}

void tensorToOnnx(TensorAttr tensor, onnx::TensorProto &proto) {
  DictionaryAttr extra = tensor.getExtra();
  proto.set_data_type(elementTypeToOnnx(tensor.getType().getElementType()));
  proto.mutable_dims()->Add(tensor.getType().getShape().begin(), tensor.getType().getShape().end());
  if (auto name = extra.getAs<StringAttr>("name"))
    proto.set_name(name.str());
  if (auto strings = dyn_cast<ArrayAttr>(tensor.getPayload())) {
    for (Attribute s : strings)
      proto.add_string_data(cast<StringAttr>(s).str());
  } else {
    ArrayRef<char> bytes = rawBytes(tensor);
    auto encoding = extra.getAs<StringAttr>("encoding");
    if (encoding && encoding.getValue() == "typed")
      setTypedData(proto, bytes);
    else
      proto.set_raw_data(bytes.data(), bytes.size());
  }
  if (auto rest = extra.getAs<DictionaryAttr>("rest"))
    applyRest(rest, proto);
}

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Attribute fieldValue(Builder &b, const Message &message, const FieldDescriptor *field, int index) {
  const Reflection *reflection = message.GetReflection();
  bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
  case FieldDescriptor::CPPTYPE_STRING: {
    std::string scratch;
    const std::string &text = repeated ? reflection->GetRepeatedStringReference(message, field, index, &scratch)
                                       : reflection->GetStringReference(message, field, &scratch);
    return b.getStringAttr(text);
  }
  case FieldDescriptor::CPPTYPE_MESSAGE: {
    const Message &child =
        repeated ? reflection->GetRepeatedMessage(message, field, index) : reflection->GetMessage(message, field);
    DictionaryAttr rest = messageRest(b.getContext(), child, {});
    return rest ? rest : b.getDictionaryAttr({});
  }
  case FieldDescriptor::CPPTYPE_INT32:
    return b.getI64IntegerAttr(repeated ? reflection->GetRepeatedInt32(message, field, index)
                                        : reflection->GetInt32(message, field));
  case FieldDescriptor::CPPTYPE_INT64:
    return b.getI64IntegerAttr(repeated ? reflection->GetRepeatedInt64(message, field, index)
                                        : reflection->GetInt64(message, field));
  case FieldDescriptor::CPPTYPE_UINT64:
    return b.getI64IntegerAttr(static_cast<int64_t>(repeated ? reflection->GetRepeatedUInt64(message, field, index)
                                                             : reflection->GetUInt64(message, field)));
  case FieldDescriptor::CPPTYPE_FLOAT:
    return b.getF32FloatAttr(repeated ? reflection->GetRepeatedFloat(message, field, index)
                                      : reflection->GetFloat(message, field));
  case FieldDescriptor::CPPTYPE_DOUBLE:
    return b.getF64FloatAttr(repeated ? reflection->GetRepeatedDouble(message, field, index)
                                      : reflection->GetDouble(message, field));
  case FieldDescriptor::CPPTYPE_ENUM:
    return b.getI64IntegerAttr(repeated ? reflection->GetRepeatedEnumValue(message, field, index)
                                        : reflection->GetEnumValue(message, field));
  default: // onnx.proto has no other kind
    return {};
  }
}

void setField(Attribute value, Message &message, const FieldDescriptor *field) {
  const Reflection *reflection = message.GetReflection();
  bool repeated = field->is_repeated();
  auto integer = [&] { return cast<IntegerAttr>(value).getInt(); };
  switch (field->cpp_type()) {
  case FieldDescriptor::CPPTYPE_STRING: {
    std::string text = cast<StringAttr>(value).str();
    return repeated ? reflection->AddString(&message, field, text) : reflection->SetString(&message, field, text);
  }
  case FieldDescriptor::CPPTYPE_MESSAGE: {
    Message *child = repeated ? reflection->AddMessage(&message, field) : reflection->MutableMessage(&message, field);
    return applyRest(cast<DictionaryAttr>(value), *child);
  }
  case FieldDescriptor::CPPTYPE_INT32: {
    int32_t number = static_cast<int32_t>(integer());
    return repeated ? reflection->AddInt32(&message, field, number) : reflection->SetInt32(&message, field, number);
  }
  case FieldDescriptor::CPPTYPE_INT64:
    return repeated ? reflection->AddInt64(&message, field, integer())
                    : reflection->SetInt64(&message, field, integer());
  case FieldDescriptor::CPPTYPE_UINT64: {
    uint64_t number = static_cast<uint64_t>(integer());
    return repeated ? reflection->AddUInt64(&message, field, number) : reflection->SetUInt64(&message, field, number);
  }
  case FieldDescriptor::CPPTYPE_FLOAT: {
    float number = cast<FloatAttr>(value).getValue().convertToFloat();
    return repeated ? reflection->AddFloat(&message, field, number) : reflection->SetFloat(&message, field, number);
  }
  case FieldDescriptor::CPPTYPE_DOUBLE: {
    double number = cast<FloatAttr>(value).getValueAsDouble();
    return repeated ? reflection->AddDouble(&message, field, number) : reflection->SetDouble(&message, field, number);
  }
  case FieldDescriptor::CPPTYPE_ENUM: {
    int number = static_cast<int>(integer());
    return repeated ? reflection->AddEnumValue(&message, field, number)
                    : reflection->SetEnumValue(&message, field, number);
  }
  default:
    return;
  }
}

constexpr StringLiteral kUnknownFields = "<unknown fields>";

} // namespace

DictionaryAttr messageRest(MLIRContext *context, const Message &message, ArrayRef<int> skip) {
  Builder b(context);
  const Reflection *reflection = message.GetReflection();
  std::vector<const FieldDescriptor *> fields;
  reflection->ListFields(message, &fields);
  NamedAttrList rest;
  for (const FieldDescriptor *field : fields) {
    if (llvm::is_contained(skip, field->number()))
      continue;
    if (!field->is_repeated()) {
      rest.set(field->name(), fieldValue(b, message, field, 0));
      continue;
    }
    SmallVector<Attribute> items;
    for (int i = 0; i < reflection->FieldSize(message, field); ++i)
      items.push_back(fieldValue(b, message, field, i));
    rest.set(field->name(), b.getArrayAttr(items));
  }
  if (const auto &unknown = reflection->GetUnknownFields(message); !unknown.empty()) {
    std::string bytes;
    unknown.SerializeToString(&bytes);
    rest.set(kUnknownFields, b.getStringAttr(bytes));
  }
  return rest.empty() ? DictionaryAttr() : rest.getDictionary(context);
}

void applyRest(DictionaryAttr rest, Message &message) {
  const auto *descriptor = message.GetDescriptor();
  for (NamedAttribute entry : rest) {
    StringRef name = entry.getName().strref();
    if (name == kUnknownFields) {
      StringRef bytes = cast<StringAttr>(entry.getValue()).getValue();
      message.GetReflection()->MutableUnknownFields(&message)->ParseFromArray(bytes.data(),
                                                                              static_cast<int>(bytes.size()));
      continue;
    }
    const FieldDescriptor *field = descriptor->FindFieldByName(name.str());
    if (!field)
      continue;
    if (!field->is_repeated()) {
      setField(entry.getValue(), message, field);
      continue;
    }
    for (Attribute item : cast<ArrayAttr>(entry.getValue()))
      setField(item, message, field);
  }
}

} // namespace recast::onnx_ir
