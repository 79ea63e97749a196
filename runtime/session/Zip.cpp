// Layout and names: PKWARE's APPNOTE.TXT 6.3, sections 4.3 and 4.5.3.
#include "runtime/session/Zip.h"
#include "runtime/plan/Files.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <zlib.h>

namespace recast {

namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr uint32_t kCentralSignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kCentralBytes = 46, kLocalBytes = 30;
constexpr uint16_t kStored = 0, kDeflated = 8, kExtra64 = 1;
constexpr uint64_t kMostDeflateRatio = 1032; // zlib's documented maximum: bounds what a damaged size can allocate.

/// Little-endian reads that check their range.
class Reader {
public:
  explicit Reader(std::span<const std::byte> bytes) : bytes(bytes) {}
  template <typename T> T get(uint64_t offset) {
    T value = 0;
    if (offset > bytes.size() || sizeof(T) > bytes.size() - offset)
      ok = false;
    else
      std::memcpy(&value, bytes.data() + offset, sizeof(T));
    return value;
  }
  std::span<const std::byte> slice(uint64_t offset, uint64_t count) {
    if (offset > bytes.size() || count > bytes.size() - offset) {
      ok = false;
      return {};
    }
    return bytes.subspan(offset, count);
  }
  bool ok = true;

private:
  std::span<const std::byte> bytes;
};

struct Directory {
  uint64_t offset = 0, count = 0;
};

bool findDirectory(std::span<const std::byte> bytes, Directory &directory) {
  Reader reader(bytes);
  if (bytes.size() < kEndBytes)
    return false;
  // The record is at the end, behind it only a comment of at most 65,535 bytes.
  uint64_t last = bytes.size() - kEndBytes, first = last - std::min<uint64_t>(last, 0xffff);
  uint64_t end = last;
  while (reader.get<uint32_t>(end) != kEndSignature) {
    if (end-- == first)
      return false;
  }
  directory.count = reader.get<uint16_t>(end + 10);
  directory.offset = reader.get<uint32_t>(end + 16);
  if ((directory.count == 0xffff || directory.offset == 0xffffffff) && end >= kLocator64Bytes &&
      reader.get<uint32_t>(end - kLocator64Bytes) == kLocator64Signature) {
    uint64_t end64 = reader.get<uint64_t>(end - kLocator64Bytes + 8);
    if (reader.get<uint32_t>(end64) != kEnd64Signature || reader.slice(end64, kEnd64Bytes).empty())
      return false;
    directory.count = reader.get<uint64_t>(end64 + 32);
    directory.offset = reader.get<uint64_t>(end64 + 48);
  }
  return reader.ok;
}

struct Entry {
  uint16_t flags, method;
  uint32_t crc;
  uint64_t packedBytes, bytes, offset;
};

/// Sizes and offset of all ones are kept in the 64-bit extra field, in this order.
void read64(Reader &reader, uint64_t extra, uint64_t extraBytes, Entry &entry) {
  uint64_t end = extra + extraBytes;
  while (reader.ok && extra + 4 <= end) {
    uint16_t id = reader.get<uint16_t>(extra), size = reader.get<uint16_t>(extra + 2);
    if (id == kExtra64) {
      uint64_t field = extra + 4;
      for (uint64_t *value : {&entry.bytes, &entry.packedBytes, &entry.offset})
        if (*value == 0xffffffff) {
          *value = reader.get<uint64_t>(field);
          field += 8;
        }
      reader.ok &= field <= extra + 4 + size;
    }
    extra += 4 + uint64_t(size);
  }
}

bool inflateInto(std::span<const std::byte> packed, std::vector<std::byte> &out) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) // Raw deflate data, no zlib header.
    return false;
  // zlib counts in 32 bits: feed and drain in pieces.
  constexpr size_t kPiece = size_t(1) << 30;
  size_t read = 0, written = 0;
  int code = Z_OK;
  while (code == Z_OK) {
    size_t give = std::min(kPiece, packed.size() - read), take = std::min(kPiece, out.size() - written);
    stream.next_in = reinterpret_cast<Bytef *>(const_cast<std::byte *>(packed.data() + read));
    stream.avail_in = static_cast<uInt>(give);
    stream.next_out = reinterpret_cast<Bytef *>(out.data() + written);
    stream.avail_out = static_cast<uInt>(take);
    code = inflate(&stream, Z_NO_FLUSH);
    read += give - stream.avail_in;
    written += take - stream.avail_out;
  }
  inflateEnd(&stream);
  return code == Z_STREAM_END && written == out.size();
}

uint32_t crcOf(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef *>(bytes.data()), bytes.size()));
}

} // namespace

Result<std::vector<ZipMember>> readZip(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  return parseZip((*file)->bytes(), *file, path);
}

Result<std::vector<ZipMember>> parseZip(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                        const std::string &path) {
  auto broken = [&](const std::string &what) { return Status::error("'" + path + "' is no valid zip file: " + what); };
  Directory directory;
  if (!findDirectory(bytes, directory))
    return broken("it has no directory");
  Reader reader(bytes);
  std::vector<ZipMember> members;
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.count; ++i) {
    if (reader.get<uint32_t>(at) != kCentralSignature || !reader.ok)
      return broken("its directory is damaged");
    uint64_t nameBytes = reader.get<uint16_t>(at + 28), extraBytes = reader.get<uint16_t>(at + 30);
    Entry entry{reader.get<uint16_t>(at + 8),  reader.get<uint16_t>(at + 10), reader.get<uint32_t>(at + 16),
                reader.get<uint32_t>(at + 20), reader.get<uint32_t>(at + 24), reader.get<uint32_t>(at + 42)};
    std::span<const std::byte> nameSpan = reader.slice(at + kCentralBytes, nameBytes);
    std::string name(reinterpret_cast<const char *>(nameSpan.data()), nameSpan.size());
    read64(reader, at + kCentralBytes + nameBytes, extraBytes, entry);
    at += kCentralBytes + nameBytes + extraBytes + reader.get<uint16_t>(at + 32);

    if (!reader.ok || reader.get<uint32_t>(entry.offset) != kLocalSignature)
      return broken("member '" + name + "' is damaged");
    uint64_t data =
        entry.offset + kLocalBytes + reader.get<uint16_t>(entry.offset + 26) + reader.get<uint16_t>(entry.offset + 28);
    std::span<const std::byte> packed = reader.slice(data, entry.packedBytes);
    if (!reader.ok)
      return broken("member '" + name + "' ends beyond the file");
    if (entry.flags & 1)
      return Status::error("member '" + name + "' of '" + path + "' is encrypted, which is not supported");
    ZipMember member{std::move(name), packed, owner};
    if (entry.method == kDeflated && entry.bytes / kMostDeflateRatio <= packed.size()) {
      auto memory = std::make_shared<std::vector<std::byte>>(entry.bytes);
      memory->reserve(1); // zlib wants an address even for nothing.
      if (!inflateInto(packed, *memory))
        return broken("member '" + member.name + "' does not unpack");
      member.bytes = *memory;
      member.owner = memory;
    } else if (entry.method == kDeflated || (entry.method == kStored && entry.bytes != packed.size())) {
      return broken("member '" + member.name + "' has a wrong size");
    } else if (entry.method != kStored) {
      return Status::error("member '" + member.name + "' of '" + path + "' is packed with method " +
                           std::to_string(entry.method) + ": only stored and deflated members are supported");
    }
    if (crcOf(member.bytes) != entry.crc)
      return broken("member '" + member.name + "' has a wrong checksum");
    members.push_back(std::move(member));
  }
  return members;
}

} // namespace recast
