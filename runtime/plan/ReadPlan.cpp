// The reading half of PlanFile.h: every number is checked before it is believed.
#include "runtime/plan/CheckPlan.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/PlanFormat.h"
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace recast {

using namespace plan_format;

namespace {

/// Of bodies in bodies: deeper than any model, and shallow enough for the stack.
constexpr int kMostNested = 64;

/// A copy, aligned for kernels; null where there is not enough memory.
std::shared_ptr<const void> copyOf(std::span<const std::byte> bytes) {
  constexpr std::align_val_t alignment{kAlignmentBytes};
  void *memory = ::operator new(std::max<size_t>(bytes.size(), 1), alignment, std::nothrow);
  if (memory && !bytes.empty())
    std::memcpy(memory, bytes.data(), bytes.size());
  return {memory, [](const void *p) { ::operator delete(const_cast<void *>(p), std::align_val_t(kAlignmentBytes)); }};
}

/// Zeros that take no memory until somebody writes, which nobody does; null where there is no room for them.
std::shared_ptr<const void> zeros(size_t bytes) {
  size_t mapped = std::max<size_t>(bytes, 1);
  void *memory = mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return nullptr;
  return {memory, [mapped](const void *p) { munmap(const_cast<void *>(p), mapped); }};
}

class Reader {
public:
  Reader(std::span<const std::byte> table, std::span<const std::byte> blobs, std::shared_ptr<const void> owner,
         std::string path)
      : table(table), blobs(blobs), owner(std::move(owner)), path(std::move(path)) {}

  template <typename... Ts> void operator()(Ts &...values) { (get(values), ...); }

  Result<std::unique_ptr<Plan>> read() {
    std::string writer; // For people who look into the file.
    (*this)(writer, records);
    auto plan = std::make_unique<Plan>();
    if (ok() && openFiles())
      get(*plan);
    if (ok() && !table.empty())
      fail(damaged("has " + std::to_string(table.size()) + " bytes too many"));
    if (!ok())
      return std::move(failure);
    if (Status status = checkPlan(*plan); !status.ok())
      return damaged(status.message());
    for (const CodeObject &code : plan->code)
      if (code.kind == CodeObject::SharedObject && plan->device == "cpu")
        if (Status status = checkTarget(code.target); !status.ok())
          return Status::error("'" + path + "': " + status.message());
    return plan;
  }

private:
  bool ok() const { return failure.ok(); }
  void fail(Status status) {
    if (ok())
      failure = std::move(status);
    table = {};
  }
  Status damaged(const std::string &text) const {
    return Status::error("'" + path + "' is damaged: " + text + "; compile the model again");
  }

  /// False, and the end of reading, where the table has not that many bytes left.
  bool has(uint64_t count, uint64_t bytesEach = 1) {
    if (count <= table.size() / bytesEach)
      return true;
    fail(damaged("it ends within a list"));
    return false;
  }
  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void get(T &number) {
    if (!has(sizeof number))
      return;
    std::memcpy(&number, table.data(), sizeof number);
    table = table.subspan(sizeof number);
  }
  void get(std::string &text) {
    uint64_t size = 0;
    get(size);
    if (!has(size))
      return;
    text.assign(reinterpret_cast<const char *>(table.data()), size);
    table = table.subspan(size);
  }
  template <typename T> void get(std::vector<T> &list) {
    uint64_t size = 0;
    get(size);
    if (!has(size))
      return;
    for (uint64_t i = 0; i < size && ok(); ++i)
      get(list.emplace_back());
  }
  template <typename K, typename V> void get(std::map<K, V> &map) {
    uint64_t size = 0;
    get(size);
    for (uint64_t i = 0; i < size && ok(); ++i) {
      K key;
      V value;
      (*this)(key, value);
      map.insert_or_assign(std::move(key), std::move(value));
    }
  }
  void get(Attributes &attrs) {
    uint64_t size = 0;
    get(size);
    for (uint64_t i = 0; i < size && ok(); ++i) {
      std::string name;
      uint8_t kind = 0;
      (*this)(name, kind);
      Attributes::Value value;
      if (!getAlternative(value, kind))
        fail(damaged("the attribute '" + name + "' is of an unknown kind"));
      attrs.set(std::move(name), std::move(value));
    }
  }
  template <size_t i = 0> bool getAlternative(Attributes::Value &value, size_t kind) {
    if constexpr (i == std::variant_size_v<Attributes::Value>) {
      return false;
    } else {
      if (kind != i)
        return getAlternative<i + 1>(value, kind);
      get(value.emplace<i>());
      return true;
    }
  }
  void get(Plan &plan) {
    if (++nested > kMostNested)
      fail(damaged("its bodies are nested too deeply"));
    Plan *around = std::exchange(current, &plan);
    fields(*this, plan);
    if (ok())
      setConstants(plan);
    current = around;
    --nested;
  }
  /// Gives the data of constants to the steps that read them.
  void setConstants(Plan &plan) {
    for (Step &step : plan.steps)
      for (size_t i = 0; i < step.spec.inputs.size(); ++i) {
        const TensorType &type = step.spec.inputs[i];
        auto data = i < step.inputs.size() ? plan.data.find(step.inputs[i]) : plan.data.end();
        bool isConstant =
            data != plan.data.end() && plan.buffers[static_cast<size_t>(data->first)].place == Place::Constant;
        step.spec.constants.push_back(
            {type.dtype, type.dims, isConstant ? const_cast<void *>(data->second.bytes) : nullptr});
      }
  }
  void get(std::map<int, Data> &all) {
    uint64_t size = 0;
    get(size);
    for (uint64_t i = 0; i < size && ok(); ++i) {
      int buffer = 0;
      DataRecord record;
      (*this)(buffer, record);
      if (!ok())
        return;
      if (buffer < 0 || static_cast<size_t>(buffer) >= current->buffers.size())
        return fail(damaged("there is data for a buffer that it has not"));
      const Buffer &target = current->buffers[static_cast<size_t>(buffer)];
      if (Status status = checkType(target); !status.ok())
        return fail(damaged(status.message()));
      if (record.bytes != target.type.bytes())
        return fail(damaged("'" + target.name + "' has " + std::to_string(record.bytes) + " bytes where " +
                            toString(target.type) + " needs " + std::to_string(target.type.bytes())));
      all[buffer] = dataOf(record, target);
    }
  }
  template <typename T>
    requires std::is_class_v<T>
  void get(T &value) {
    fields(*this, value);
  }

  Data dataOf(const DataRecord &record, const Buffer &target) {
    if (record.kind == DataRecord::Zeros)
      return owned(zeros(record.bytes), target);
    bool isBlob = record.kind == DataRecord::Blob;
    if (!isBlob && (record.kind != DataRecord::File || record.file >= files.size()))
      return noData("the data of '" + target.name + "' is in a place that it does not name");
    std::span<const std::byte> bytes = isBlob ? blobs : files[record.file]->bytes();
    if (record.offset > bytes.size() || record.bytes > bytes.size() - record.offset)
      return noData("the data of '" + target.name + "' ends beyond its file");
    bytes = bytes.subspan(record.offset, record.bytes);
    if (!isBlob && XXH3_64bits(bytes.data(), bytes.size()) != record.hash) {
      fail(changed(records[record.file], "the values of '" + target.name + "' are others"));
      return {};
    }
    // State is copied anyway when it gets its memory.
    bool isAligned = reinterpret_cast<uintptr_t>(bytes.data()) % byteSize(target.type.dtype) == 0;
    if (isAligned || target.place == Place::State)
      return {bytes.data(), isBlob ? owner : files[record.file]};
    return owned(copyOf(bytes), target);
  }
  Data noData(const std::string &text) {
    fail(damaged(text));
    return {};
  }
  Data owned(std::shared_ptr<const void> memory, const Buffer &target) {
    if (!memory)
      fail(Status::error("there is not enough memory for '" + target.name + "' (" + toString(target.type) + ")"));
    return {memory.get(), memory};
  }

  Status changed(const FileRecord &file, const std::string &how) const {
    return Status::error("'" + path + "': '" + file.name + "' has changed since the plan was made from it (" + how +
                         "); compile the model again");
  }
  bool openFiles() {
    std::error_code ignored;
    std::filesystem::path folder = std::filesystem::weakly_canonical(path, ignored).parent_path();
    for (const FileRecord &record : records) {
      auto file = MappedFile::open((folder / record.name).lexically_normal().string());
      if (!file) {
        fail(Status::error("'" + path + "' refers to its model's data: " + file.message() +
                           "; plan and data move together"));
        return false;
      }
      if ((*file)->bytes().size() != record.bytes) {
        fail(changed(record,
                     std::to_string((*file)->bytes().size()) + " bytes instead of " + std::to_string(record.bytes)));
        return false;
      }
      files.push_back(std::move(*file));
    }
    return true;
  }

  std::span<const std::byte> table, blobs;
  std::shared_ptr<const void> owner;
  std::string path;
  std::vector<FileRecord> records;
  std::vector<std::shared_ptr<const MappedFile>> files; ///< One a record.
  Plan *current = nullptr;
  int nested = 0;
  Status failure = Status::success();
};

/// Everything before the table: is this a whole, undamaged plan that this program can read?
Result<Header> checkEnvelope(std::span<const std::byte> bytes, const std::string &path) {
  Header header;
  std::string name = "'" + path + "'";
  size_t start = std::min(bytes.size(), sizeof kMagic);
  if (!start || std::memcmp(bytes.data(), kMagic, start) != 0)
    return Status::error(name + " is no compiled plan: make one with recast-opt MODEL --emit=plan -o OUT.plan");
  if (bytes.size() < sizeof header + sizeof(Checksum))
    return Status::error(name + " is damaged: it ends after " + std::to_string(bytes.size()) +
                         " bytes; compile the model again");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.byteOrder != kByteOrder)
    return Status::error(name + " comes from a machine with another byte order, or is damaged: compile the model here");
  if (header.version != kVersion)
    return Status::error(name + " has version " + std::to_string(header.version) +
                         " of the plan format, and this program reads version " + std::to_string(kVersion) +
                         ": compile the model again, with the same version of recast");
  if (header.fileBytes != bytes.size())
    return Status::error(name + " is damaged: it has " + std::to_string(bytes.size()) + " bytes instead of " +
                         std::to_string(header.fileBytes) + "; compile the model again");
  Checksum checksum;
  size_t covered = bytes.size() - sizeof checksum;
  std::memcpy(&checksum, bytes.data() + covered, sizeof checksum);
  if (checksum != XXH3_64bits(bytes.data(), covered))
    return Status::error(name + " is damaged: its checksum is wrong; compile the model again");
  if (header.tableBytes > covered - sizeof header)
    return Status::error(name + " is damaged: its table is longer than the file; compile the model again");
  return header;
}

} // namespace

Result<std::unique_ptr<Plan>> readPlan(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                       const std::string &path) {
  Result<Header> header = checkEnvelope(bytes, path);
  if (!header)
    return header.status();
  std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(Checksum));
  size_t tableEnd = sizeof(Header) + header->tableBytes;
  size_t blobs = std::min((tableEnd + kBlobAlignment - 1) / kBlobAlignment * kBlobAlignment, body.size());
  return Reader(body.first(tableEnd).subspan(sizeof(Header)), body.subspan(blobs), std::move(owner), path).read();
}

bool isPlan(const std::string &path) {
  char start[sizeof kMagic] = {};
  std::ifstream(path, std::ios::binary).read(start, sizeof start);
  return std::memcmp(start, kMagic, sizeof kMagic) == 0;
}

Result<std::unique_ptr<Plan>> readPlan(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  return readPlan((*file)->bytes(), *file, path);
}

} // namespace recast
