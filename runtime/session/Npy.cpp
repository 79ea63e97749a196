#include "runtime/session/Npy.h"
#include "runtime/plan/Files.h"
#include "runtime/session/Zip.h"
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

namespace recast {

namespace {

/// The header: a Python dictionary literal with the keys descr, fortran_order and shape.
struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<int64_t> dims;
};

/// Reads the literal's few forms; every failure leaves `ok` false.
class HeaderParser {
public:
  explicit HeaderParser(std::string_view text) : text(text) {}

  bool parse(Header &header) {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (ok && !accept('}')) {
      std::string_view key = quoted();
      expect(':');
      if (key == "descr") {
        header.descr = quoted(); // A list here is a structured array: not a tensor.
        descr = true;
      } else if (key == "fortran_order") {
        header.fortran = boolean();
        order = true;
      } else if (key == "shape") {
        header.dims = tuple();
        shape = true;
      } else {
        ok = false;
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    return ok && descr && order && shape;
  }

private:
  void skipSpace() { text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size())); }
  bool accept(char c) {
    skipSpace();
    bool found = !text.empty() && text.front() == c;
    if (found)
      text.remove_prefix(1);
    return found;
  }
  void expect(char c) { ok &= accept(c); }

  std::string_view quoted() {
    skipSpace();
    size_t end = text.empty() || (text[0] != '\'' && text[0] != '"') ? std::string_view::npos : text.find(text[0], 1);
    if (end == std::string_view::npos) {
      ok = false;
      return "";
    }
    std::string_view value = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    return value;
  }

  bool boolean() {
    skipSpace();
    for (auto [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (text.starts_with(word)) {
        text.remove_prefix(word.size());
        return value;
      }
    ok = false;
    return false;
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> dims;
    expect('(');
    while (ok && !accept(')')) {
      skipSpace();
      int64_t d = -1;
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), d);
      if (error != std::errc() || d < 0) {
        ok = false;
        break;
      }
      text.remove_prefix(end - text.data());
      dims.push_back(d);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return dims;
  }

  std::string_view text;
  bool ok = true;
};

DType typeCalled(std::string_view descr) {
  constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"<f8", DType::F64}, {"<f4", DType::F32}, {"<f2", DType::F16}, {"<i8", DType::I64},
      {"<i4", DType::I32}, {"<i2", DType::I16}, {"|i1", DType::I8},  {"<u8", DType::U64},
      {"<u4", DType::U32}, {"<u2", DType::U16}, {"|u1", DType::U8},  {"|b1", DType::Bool}};
  for (auto [name, type] : kTypes)
    if (name == descr)
      return type;
  return DType::Undefined;
}

/// Column-major to row-major.
HostTensor rearranged(const HostTensor &source) {
  size_t rank = source.type.dims.size(), element = byteSize(source.type.dtype);
  auto memory = std::make_shared<std::vector<std::byte>>(source.type.bytes());
  std::vector<int64_t> strides(rank), index(rank);
  int64_t stride = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    strides[axis] = stride;
    stride *= source.type.dims[axis];
  }
  int64_t from = 0;
  for (int64_t to = 0, count = source.type.elems(); to < count; ++to) {
    std::memcpy(memory->data() + to * element, source.data + from * element, element);
    for (size_t axis = rank; axis-- > 0;) {
      from += strides[axis];
      if (++index[axis] < source.type.dims[axis])
        break;
      from -= strides[axis] * index[axis];
      index[axis] = 0;
    }
  }
  return {source.type, memory->data(), memory};
}

constexpr std::string_view kSuffix = ".npy";

} // namespace

Result<HostTensor> parseNpy(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                            const std::string &path) {
  auto broken = [&](const std::string &what) { return Status::error("'" + path + "' is no valid .npy file: " + what); };
  auto byte = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
  if (bytes.size() < 12 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0)
    return broken("it does not start as one");
  uint32_t version = byte(6);
  if (version < 1 || version > 3)
    return broken("it has version " + std::to_string(version));
  size_t prefix = version == 1 ? 10 : 12;
  size_t headerBytes = byte(8) | byte(9) << 8;
  if (version > 1)
    headerBytes |= byte(10) << 16 | byte(11) << 24;
  if (headerBytes > bytes.size() - prefix)
    return broken("its header is said to have " + std::to_string(headerBytes) + " bytes");

  Header header;
  std::string_view text(reinterpret_cast<const char *>(bytes.data()) + prefix, headerBytes);
  if (!HeaderParser(text).parse(header))
    return broken("its header is not understood");
  HostTensor tensor{{typeCalled(header.descr), std::move(header.dims)}, bytes.data() + prefix + headerBytes, owner};
  if (!tensor.type.present())
    return Status::error("'" + path + "' holds elements of type '" + header.descr +
                         "', which are not supported: save little-endian numbers or bools");
  std::optional<size_t> needed = checkedBytes(tensor.type.dims, byteSize(tensor.type.dtype));
  size_t held = bytes.size() - prefix - headerBytes;
  if (!needed || *needed != held)
    return broken("it has " + std::to_string(held) + " bytes of data for " + toString(tensor.type));
  if (header.fortran && tensor.type.rank() > 1)
    return rearranged(tensor);
  return tensor;
}

Result<TensorMap> readNpz(const std::string &path) {
  auto members = readZip(path);
  if (!members)
    return members.status();
  TensorMap tensors;
  for (ZipMember &member : *members) {
    if (!member.name.ends_with(kSuffix))
      continue;
    auto tensor = parseNpy(member.bytes, member.owner, path + "/" + member.name);
    if (!tensor)
      return tensor.status();
    tensors.insert_or_assign(member.name.substr(0, member.name.size() - kSuffix.size()), std::move(*tensor));
  }
  return tensors;
}

Result<TensorMap> readNpyFolder(const std::string &path) {
  TensorMap tensors;
  std::error_code error;
  for (const auto &entry : std::filesystem::directory_iterator(path, error)) {
    std::string name = entry.path().filename().string();
    if (!name.ends_with(kSuffix))
      continue;
    auto file = MappedFile::open(entry.path().string());
    if (!file)
      return file.status();
    auto tensor = parseNpy((*file)->bytes(), *file, entry.path().string());
    if (!tensor)
      return tensor.status();
    tensors.emplace(name.substr(0, name.size() - kSuffix.size()), std::move(*tensor));
  }
  if (error)
    return Status::error("cannot read '" + path + "': " + error.message());
  return tensors;
}

} // namespace recast
