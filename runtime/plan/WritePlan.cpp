// The writing half of PlanFile.h.
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/PlanFormat.h"
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace recast {

using namespace plan_format;
static_assert(std::endian::native == std::endian::little, "the format's numbers are written as they lie in memory");

namespace {

/// Smaller data is embedded: a reference and its check cost as much.
constexpr size_t kReferenceBytes = 4096;

/// The folder without links, so that paths can be relative to it; the file itself may be a link.
std::filesystem::path canonical(const std::filesystem::path &path) {
  std::error_code ignored;
  std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return std::filesystem::weakly_canonical(absolute.parent_path(), ignored) / absolute.filename();
}

bool isZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte(); });
}

class Serializer {
public:
  Serializer(std::span<const PlanSource> sources, std::vector<FileRecord> &files, std::filesystem::path folder)
      : sources(sources), files(files), folder(std::move(folder)) {}

  template <typename... Ts> void operator()(const Ts &...values) { (put(values), ...); }

  std::string table;
  /// What is embedded, in order; each starts at a multiple of 64.
  std::vector<std::span<const std::byte>> blobs;

private:
  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void put(T number) {
    table.append(reinterpret_cast<const char *>(&number), sizeof number);
  }
  void put(const std::string &text) {
    put(uint64_t(text.size()));
    table += text;
  }
  template <typename T> void put(const std::vector<T> &list) {
    put(uint64_t(list.size()));
    for (const T &item : list)
      put(item);
  }
  template <typename K, typename V> void put(const std::map<K, V> &map) {
    put(uint64_t(map.size()));
    for (const auto &[key, value] : map)
      (*this)(key, value);
  }
  void put(const Attributes &attrs) {
    put(uint64_t(std::distance(attrs.begin(), attrs.end())));
    for (const auto &[name, value] : attrs) {
      (*this)(name, static_cast<uint8_t>(value.index()));
      std::visit([this](const auto &v) { put(v); }, value);
    }
  }
  void put(const Plan &plan) {
    const Plan *around = std::exchange(current, &plan);
    fields(*this, plan);
    current = around;
  }
  void put(const std::map<int, Data> &all) {
    put(uint64_t(all.size()));
    for (const auto &[buffer, data] : all) {
      size_t bytes = current->buffers[static_cast<size_t>(buffer)].type.bytes();
      (*this)(buffer, recordOf(data, {static_cast<const std::byte *>(data.bytes), bytes}));
    }
  }
  template <typename T>
    requires std::is_class_v<T>
  void put(const T &value) {
    fields(*this, value);
  }

  DataRecord recordOf(const Data &data, std::span<const std::byte> bytes) {
    auto [known, isNew] = records.try_emplace(data.bytes);
    if (!isNew && known->second.bytes == bytes.size())
      return known->second;
    DataRecord &record = known->second;
    record = {DataRecord::Zeros, 0, 0, bytes.size(), 0};
    if (isZero(bytes) || refer(record, data, bytes))
      return record;
    record = {DataRecord::Blob, 0, blobBytes, bytes.size(), 0};
    blobs.push_back(bytes);
    blobBytes += (bytes.size() + kBlobAlignment - 1) / kBlobAlignment * kBlobAlignment;
    return record;
  }

  bool refer(DataRecord &record, const Data &data, std::span<const std::byte> bytes) {
    if (folder.empty() || bytes.size() < kReferenceBytes)
      return false;
    auto *origin = static_cast<const std::byte *>(data.copyOf ? data.copyOf : data.bytes);
    for (const PlanSource &source : sources) {
      const std::byte *begin = source.bytes.data(), *end = begin + source.bytes.size();
      if (std::less<>()(origin, begin) || std::less<>()(end, origin + bytes.size()))
        continue;
      record = {DataRecord::File, fileOf(source), static_cast<uint64_t>(origin - begin), bytes.size(),
                XXH3_64bits(bytes.data(), bytes.size())};
      return true;
    }
    return false;
  }

  uint32_t fileOf(const PlanSource &source) {
    std::string name = canonical(source.path).lexically_relative(folder).string();
    auto known = std::ranges::find(files, name, &FileRecord::name);
    if (known == files.end())
      known = files.insert(files.end(), {name, source.bytes.size()});
    return static_cast<uint32_t>(known - files.begin());
  }

  std::span<const PlanSource> sources;
  std::vector<FileRecord> &files;
  std::filesystem::path folder;
  const Plan *current = nullptr;
  std::unordered_map<const void *, DataRecord> records;
  uint64_t blobBytes = 0;
};

/// Writes to a file or to standard output, and knows the checksum of what it wrote.
class Sink {
public:
  explicit Sink(AtomicFile *file) : file(file), state(XXH3_createState()) { XXH3_64bits_reset(state); }
  ~Sink() { XXH3_freeState(state); }
  Sink(const Sink &) = delete;

  void write(const void *bytes, size_t count) {
    if (!status.ok() || !count)
      return;
    XXH3_64bits_update(state, bytes, count);
    written += count;
    if (file)
      status = file->write(bytes, count);
    else if (std::fwrite(bytes, 1, count, stdout) != count)
      status = systemError("write", "standard output");
  }
  void align() {
    constexpr std::byte zeros[kBlobAlignment] = {};
    write(zeros, (kBlobAlignment - written % kBlobAlignment) % kBlobAlignment);
  }
  Status finish() {
    Checksum checksum = XXH3_64bits_digest(state);
    write(&checksum, sizeof checksum);
    if (!file && status.ok() && std::fflush(stdout) != 0)
      status = systemError("write", "standard output");
    return std::move(status);
  }

private:
  AtomicFile *file;
  XXH3_state_t *state;
  Status status = Status::success();
  size_t written = 0;
};

Status writeTo(AtomicFile *file, const Plan &plan, std::span<const PlanSource> sources,
               const std::filesystem::path &folder) {
  // The files are known only when all data is: the plan comes first, and its table last.
  std::vector<FileRecord> files;
  Serializer body(sources, files, folder), head({}, files, folder);
  body(plan);
  head(std::string("recast " RECAST_VERSION), files);
  size_t blobBytes = 0;
  auto aligned = [](size_t bytes) { return (bytes + kBlobAlignment - 1) / kBlobAlignment * kBlobAlignment; };
  for (auto blob : body.blobs)
    blobBytes += aligned(blob.size());
  Header header{{}, kByteOrder, kVersion, 0, head.table.size() + body.table.size()};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.fileBytes = aligned(sizeof header + header.tableBytes) + blobBytes + sizeof(Checksum);
  Sink sink(file);
  sink.write(&header, sizeof header);
  sink.write(head.table.data(), head.table.size());
  sink.write(body.table.data(), body.table.size());
  sink.align();
  for (auto blob : body.blobs) {
    sink.write(blob.data(), blob.size());
    sink.align();
  }
  return sink.finish();
}

} // namespace

Status writePlan(const Plan &plan, const std::string &path, std::span<const PlanSource> sources) {
  if (path == "-")
    return writeTo(nullptr, plan, {}, {});
  std::error_code ignored;
  for (const PlanSource &source : sources)
    if (std::filesystem::equivalent(source.path, path, ignored))
      return Status::error("the plan refers to '" + source.path + "' and cannot replace it: give it another name");
  auto file = AtomicFile::create(path);
  if (!file)
    return file.status();
  if (Status status = writeTo(file->get(), plan, sources, canonical(path).parent_path()); !status.ok())
    return status;
  return (*file)->commit();
}

} // namespace recast
