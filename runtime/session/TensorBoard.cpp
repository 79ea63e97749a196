#include "runtime/session/TensorBoard.h"
#include <array>

namespace recast::tensorboard {

namespace {

constexpr std::array<uint32_t, 256> makeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    table[i] = crc;
  }
  return table;
}

template <typename T> std::string raw(T value) {
  return std::string(reinterpret_cast<const char *>(&value), sizeof(T));
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7)
    bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Protobuf's wire types.
enum : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
std::string key(uint32_t field, uint32_t wireType) { return varint(field << 3 | wireType); }
std::string bytesField(uint32_t field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

/// The checksums of the record format are rotated and offset, so that a checksum of checksums stays strong.
uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8; }

} // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = makeCrcTable();
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes)
    crc = crc >> 8 ^ kTable[(crc ^ byte) & 0xff];
  return ~crc;
}

std::string record(std::string_view payload) {
  std::string length = raw<uint64_t>(payload.size());
  return length + raw(masked(crc32c(length))) + std::string(payload) + raw(masked(crc32c(payload)));
}

std::string versionEvent(double wallSeconds) {
  return key(1, kFixed64) + raw(wallSeconds) + bytesField(3, "brain.Event:2");
}

std::string scalarsEvent(double wallSeconds, int64_t step, std::span<const std::pair<std::string, float>> scalars) {
  std::string summary;
  for (const auto &[tag, value] : scalars)
    summary += bytesField(1, bytesField(1, tag) + key(2, kFixed32) + raw(value));
  return key(1, kFixed64) + raw(wallSeconds) + key(2, kVarint) + varint(static_cast<uint64_t>(step)) +
         bytesField(5, summary);
}

} // namespace recast::tensorboard
