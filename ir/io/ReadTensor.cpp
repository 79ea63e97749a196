#include "ir/io/ReadTensor.h"
#include "ir/io/WireFormat.h"
#include "ir/onnx/AttrProto.h"
#include "ir/onnx/Types.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"
#include <filesystem>

using namespace llvm;
using namespace recast::onnx_ir;
namespace recast::io {

namespace {

template <typename... Parts> Error tensorError(const onnx::TensorProto &proto, const Parts &...parts) {
  std::string text = "tensor '" + proto.name() + "': ";
  raw_string_ostream stream(text);
  (stream << ... << parts);
  return createStringError(text);
}

// Elements of a shape; an error for negative sizes and for products that no memory could hold.
Expected<uint64_t> countElements(const onnx::TensorProto &proto) {
  uint64_t count = 1;
  bool empty = false;
  for (int64_t dim : proto.dims()) {
    if (dim < 0)
      return tensorError(proto, "has the negative dimension ", dim);
    empty |= dim == 0;
    if (dim != 0 && count > (uint64_t(1) << 60) / static_cast<uint64_t>(dim))
      return tensorError(proto, "has dimensions whose product overflows");
    count *= dim == 0 ? 1 : static_cast<uint64_t>(dim);
  }
  return empty ? 0 : count;
}

// True where `location` stays inside the model's folder: relative, without "..".
bool staysInside(StringRef location) {
  if (location.empty() || sys::path::is_absolute(location) || location.contains('\\') || location.contains('\0'))
    return false;
  for (auto part = sys::path::begin(location), end = sys::path::end(location); part != end; ++part)
    if (*part == "..")
      return false;
  return true;
}

} // namespace

Expected<ArrayRef<char>> TensorReader::external(const onnx::TensorProto &proto, uint64_t expectedBytes,
                                                std::shared_ptr<const void> &owner) {
  std::string location;
  uint64_t offset = 0, length = expectedBytes;
  for (const auto &entry : proto.external_data()) {
    if (entry.key() == "location")
      location = entry.value();
    else if (entry.key() == "offset" && StringRef(entry.value()).getAsInteger(10, offset))
      return tensorError(proto, "external data has the offset '", entry.value(), "', which is no number from 0 up");
    else if (entry.key() == "length" && StringRef(entry.value()).getAsInteger(10, length))
      return tensorError(proto, "external data has the length '", entry.value(), "', which is no number from 0 up");
  }
  if (!staysInside(location))
    return tensorError(proto, "external data at '", location, "' is outside the model's folder and is not read");
  std::shared_ptr<MappedFile> &file = externalFiles[location];
  if (!file) {
    std::filesystem::path base(folder.empty() ? "." : folder), full = base / location;
    std::error_code code;
    auto real = std::filesystem::weakly_canonical(full, code), root = std::filesystem::weakly_canonical(base, code);
    auto relative = real.lexically_relative(root);
    if (relative.empty() || *relative.begin() == "..")
      return tensorError(proto, "external data at '", location, "' leads outside the model's folder and is not read");
    auto opened = MappedFile::open(full.string());
    if (!opened)
      return tensorError(proto, "external data: ", toString(opened.takeError()));
    file = *opened;
  }
  uint64_t size = file->bytes().size();
  if (offset > size || length > size - offset)
    return tensorError(proto, "external data at offset ", offset, " with ", length,
                       " bytes reaches beyond the end of '", location, "' (", size, " bytes)");
  owner = file;
  return file->bytes().slice(offset, length);
}

Expected<TensorAttr> TensorReader::read(const onnx::TensorProto &proto, bool dropName) {
  mlir::Builder b(context);
  mlir::Type element = elementTypeFromOnnx(context, proto.data_type());
  if (!element)
    return tensorError(proto, "has the unknown data type ", proto.data_type());
  auto count = countElements(proto);
  if (!count)
    return count.takeError();
  auto type = mlir::RankedTensorType::get(ArrayRef<int64_t>(proto.dims().data(), proto.dims_size()), element);

  SmallVector<int> known = {onnx::TensorProto::kDimsFieldNumber,       onnx::TensorProto::kDataTypeFieldNumber,
                            onnx::TensorProto::kFloatDataFieldNumber,  onnx::TensorProto::kInt32DataFieldNumber,
                            onnx::TensorProto::kStringDataFieldNumber, onnx::TensorProto::kInt64DataFieldNumber,
                            onnx::TensorProto::kRawDataFieldNumber,    onnx::TensorProto::kDoubleDataFieldNumber,
                            onnx::TensorProto::kUint64DataFieldNumber, onnx::TensorProto::kNameFieldNumber};
  mlir::NamedAttrList extra;
  if (!dropName && proto.has_name())
    extra.set("name", b.getStringAttr(proto.name()));
  bool isExternal = proto.data_location() == onnx::TensorProto::EXTERNAL;
  if (isExternal)
    extra.set("external", b.getUnitAttr()); // The entries themselves are in `rest`.
  if (mlir::DictionaryAttr rest = messageRest(context, proto, known))
    extra.set("rest", rest);

  if (isa<StringType>(element)) {
    if (static_cast<uint64_t>(proto.string_data_size()) != *count)
      return tensorError(proto, "has ", proto.string_data_size(), " strings where its dimensions ask for ", *count);
    SmallVector<mlir::Attribute> strings;
    for (const std::string &s : proto.string_data())
      strings.push_back(b.getStringAttr(s));
    return TensorAttr::get(context, type, b.getArrayAttr(strings), extra.getDictionary(context));
  }

  uint64_t expected = (*count * storageBits(element) + 7) / 8;
  ArrayRef<char> bytes;
  std::shared_ptr<const void> owner;
  SmallVector<char> typed;
  if (isExternal) {
    auto found = external(proto, expected, owner);
    if (!found)
      return found.takeError();
    bytes = *found;
  } else if (proto.has_raw_data()) {
    bytes = ArrayRef(proto.raw_data().data(), proto.raw_data().size());
    if (auto token = decodeToken(proto.raw_data()); token && model) {
      bytes = model->bytes().slice(token->first, token->second);
      owner = model;
    }
  } else {
    typedDataBytes(proto, typed);
    bytes = typed;
    if (*count != 0 || !typed.empty())
      extra.set("encoding", b.getStringAttr("typed"));
    else
      extra.set("encoding", b.getStringAttr("none")); // no elements, and no data field either
  }
  if (bytes.size() != expected)
    return tensorError(proto, "has ", bytes.size(), " bytes of data where ", dataTypeName(proto.data_type()), " [",
                       join(map_range(proto.dims(), [](int64_t d) { return std::to_string(d); }), ", "), "] needs ",
                       expected);
  mlir::DictionaryAttr kept = extra.getDictionary(context);
  std::string key = proto.name().empty() ? "tensor" : proto.name();
  return owner ? viewTensor(type, bytes, owner, kept, key) : makeTensor(type, bytes, kept, key);
}

} // namespace recast::io
