#include "runtime/session/Safetensors.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

namespace recast {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");
constexpr uint64_t kMostHeaderBytes = 100'000'000; // The format's own limit.

constexpr std::array<std::pair<std::string_view, DType>, 18> kTypes{{{"F64", DType::F64},
                                                                     {"F32", DType::F32},
                                                                     {"F16", DType::F16},
                                                                     {"BF16", DType::BF16},
                                                                     {"I64", DType::I64},
                                                                     {"I32", DType::I32},
                                                                     {"I16", DType::I16},
                                                                     {"I8", DType::I8},
                                                                     {"U64", DType::U64},
                                                                     {"U32", DType::U32},
                                                                     {"U16", DType::U16},
                                                                     {"U8", DType::U8},
                                                                     {"BOOL", DType::Bool},
                                                                     {"F8_E4M3", DType::F8E4M3FN},
                                                                     {"F8_E5M2", DType::F8E5M2},
                                                                     {"F8_E4M3FNUZ", DType::F8E4M3FNUZ},
                                                                     {"F8_E5M2FNUZ", DType::F8E5M2FNUZ},
                                                                     {"F8_E8M0", DType::F8E8M0}}};

DType typeCalled(std::string_view name) {
  auto it = std::ranges::find(kTypes, name, &std::pair<std::string_view, DType>::first);
  return it == kTypes.end() ? DType::Undefined : it->second;
}

std::string_view nameOf(DType type) {
  return std::ranges::find(kTypes, type, &std::pair<std::string_view, DType>::second)->first;
}

/// A key that stands twice in one object has no defined meaning, and JSON libraries silently keep one of the two.
nlohmann::json parseWithoutDuplicates(std::string_view text, std::string &duplicate) {
  std::vector<std::set<std::string>> keys;
  auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json &value) {
    if (event == nlohmann::json::parse_event_t::object_start)
      keys.emplace_back();
    else if (event == nlohmann::json::parse_event_t::object_end)
      keys.pop_back();
    else if (event == nlohmann::json::parse_event_t::key &&
             !keys.back().insert(value.get_ref<const std::string &>()).second)
      duplicate = value.get<std::string>();
    return true;
  };
  return nlohmann::json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
}

struct Range {
  uint64_t begin, end;
  std::string name;
};

/// Reads one entry of the header; returns what is wrong with it, or "".
std::string readEntry(const nlohmann::json &entry, uint64_t dataBytes, TensorType &type, Range &range) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    return "has no dtype, shape and data_offsets";
  const nlohmann::json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string())
    return "has a dtype that is no string";
  type.dtype = typeCalled(dtype.get_ref<const std::string &>());
  if (!type.present())
    return "has dtype " + dtype.get<std::string>() + ", which is not supported";
  if (!shape.is_array())
    return "has a shape that is no list";
  for (const nlohmann::json &d : shape) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > INT64_MAX)
      return "has " + d.dump() + " as a dimension";
    type.dims.push_back(d.get<int64_t>());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    return "has data_offsets that are not two numbers";
  range.begin = offsets[0].get<uint64_t>();
  range.end = offsets[1].get<uint64_t>();
  if (range.begin > range.end || range.end > dataBytes)
    return "has bytes " + std::to_string(range.begin) + " to " + std::to_string(range.end) + ", but the file holds " +
           std::to_string(dataBytes) + " bytes of data";
  std::optional<size_t> bytes = checkedBytes(type.dims, byteSize(type.dtype));
  if (!bytes || *bytes != range.end - range.begin)
    return "is " + toString(type) + ", which are not the " + std::to_string(range.end - range.begin) +
           " bytes of its data_offsets";
  return "";
}

/// The format asks that every byte of the data belongs to exactly one tensor.
std::string checkCoverage(std::vector<Range> ranges, uint64_t dataBytes) {
  std::ranges::sort(ranges, {}, [](const Range &r) { return std::pair(r.begin, r.end); });
  uint64_t next = 0;
  for (const Range &range : ranges) {
    if (range.begin < next)
      return "tensor '" + range.name + "' overlaps the one before it";
    if (range.begin > next)
      return "there are " + std::to_string(range.begin - next) + " bytes before tensor '" + range.name +
             "' that belong to no tensor";
    next = range.end;
  }
  if (next != dataBytes)
    return "there are " + std::to_string(dataBytes - next) + " bytes at the end that belong to no tensor";
  return "";
}

std::string readMetadata(const nlohmann::json &entry, Metadata &metadata) {
  if (!entry.is_object())
    return "its __metadata__ is no object";
  for (const auto &[key, value] : entry.items()) {
    if (!value.is_string())
      return "the value of '" + key + "' in its __metadata__ is no string";
    metadata[key] = value.get<std::string>();
  }
  return "";
}

} // namespace

Result<Safetensors> readSafetensors(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  return parseSafetensors((*file)->bytes(), *file, path);
}

Result<Safetensors> parseSafetensors(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                     const std::string &path) {
  auto broken = [&](const std::string &what) {
    return Status::error("'" + path + "' is no valid safetensors file: " + what);
  };
  uint64_t headerBytes = 0;
  if (bytes.size() < sizeof(headerBytes))
    return broken("it has only " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(&headerBytes, bytes.data(), sizeof(headerBytes));
  if (headerBytes > kMostHeaderBytes || headerBytes > bytes.size() - sizeof(headerBytes))
    return broken("its header is said to have " + std::to_string(headerBytes) + " bytes");
  std::string_view header(reinterpret_cast<const char *>(bytes.data()) + sizeof(headerBytes), headerBytes);
  std::span<const std::byte> data = bytes.subspan(sizeof(headerBytes) + headerBytes);

  std::string duplicate;
  nlohmann::json json = parseWithoutDuplicates(header, duplicate);
  if (!json.is_object())
    return broken("its header is no JSON object");
  if (!duplicate.empty())
    return broken("'" + duplicate + "' stands twice in its header");

  Safetensors result;
  std::vector<Range> ranges;
  for (const auto &[name, entry] : json.items()) {
    if (name == "__metadata__") {
      if (std::string what = readMetadata(entry, result.metadata); !what.empty())
        return broken(what);
      continue;
    }
    HostTensor tensor;
    Range range{0, 0, name};
    if (std::string what = readEntry(entry, data.size(), tensor.type, range); !what.empty())
      return broken("tensor '" + name + "' " + what);
    tensor.data = data.data() + range.begin;
    tensor.owner = owner;
    result.tensors.emplace(name, std::move(tensor));
    ranges.push_back(std::move(range));
  }
  if (std::string what = checkCoverage(std::move(ranges), data.size()); !what.empty())
    return broken(what);
  return result;
}

Status writeSafetensors(const std::string &path, std::vector<NamedTensor> tensors, const Metadata &metadata) {
  auto file = stageSafetensors(path, std::move(tensors), metadata);
  return file ? (*file)->commit() : file.status();
}

Result<std::unique_ptr<AtomicFile>> stageSafetensors(const std::string &path, std::vector<NamedTensor> tensors,
                                                     const Metadata &metadata) {
  std::ranges::sort(tensors, [](const NamedTensor &a, const NamedTensor &b) {
    size_t sizeA = byteSize(a.type.dtype), sizeB = byteSize(b.type.dtype);
    return sizeA != sizeB ? sizeA > sizeB : a.name < b.name;
  });
  nlohmann::ordered_json json;
  if (!metadata.empty())
    json["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor &tensor : tensors) {
    if (!byteSize(tensor.type.dtype))
      return Status::error("cannot write tensor '" + tensor.name + "' to '" + path + "': safetensors holds no " +
                           std::string(name(tensor.type.dtype)));
    uint64_t end = offset + tensor.type.bytes();
    json[tensor.name] = {
        {"dtype", nameOf(tensor.type.dtype)}, {"shape", tensor.type.dims}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Names come from models, whose strings need not be valid UTF-8.
  std::string header = json.is_null() ? "{}" : json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t headerBytes = header.size();

  auto file = AtomicFile::create(path);
  if (!file)
    return file;
  Status status = (*file)->write(&headerBytes, sizeof(headerBytes));
  if (status.ok())
    status = (*file)->write(header);
  for (const NamedTensor &tensor : tensors)
    if (status.ok())
      status = (*file)->write(tensor.data, tensor.type.bytes());
  if (!status.ok())
    return status;
  return file;
}

} // namespace recast
