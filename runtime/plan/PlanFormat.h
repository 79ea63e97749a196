// The fields of a plan in the order in which its file holds them: one list for writing and reading.
#pragma once
#include "runtime/plan/Plan.h"
#include <concepts>

namespace recast::plan_format {

inline constexpr char kMagic[8] = {'\x89', 'r', 'e', 'c', 'a', 's', 't', '\n'};
inline constexpr uint32_t kByteOrder = 0x01020304;
/// Changes with every change of what follows the first 16 bytes.
inline constexpr uint32_t kVersion = 2;
inline constexpr size_t kBlobAlignment = 64;

/// The first bytes of a file. All numbers of the format are little endian.
struct Header {
  char magic[8];
  uint32_t byteOrder, version;
  uint64_t fileBytes;  ///< All of the file, the checksum at its end included.
  uint64_t tableBytes; ///< Of the table; blobs follow at the next multiple of 64.
};
static_assert(sizeof(Header) == 32);

/// XXH3 (64 bits) of everything before it.
using Checksum = uint64_t;

/// Where the bytes of a constant or of an initial state are.
struct DataRecord {
  enum Kind : uint8_t { Zeros, Blob, File } kind = Zeros;
  uint32_t file = 0;   ///< File: which of the table's files.
  uint64_t offset = 0; ///< In that file, or from where blobs start.
  uint64_t bytes = 0;
  uint64_t hash = 0; ///< File: XXH3 of the bytes.
};

/// A file that data is in; its name is relative to the plan's folder.
struct FileRecord {
  std::string name;
  uint64_t bytes = 0;
};

template <typename T, typename U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

// Structured bindings name every member: who adds one to a struct is told here that files must hold it, too (and that
// kVersion changes with it).
template <Is<TensorType> T> void fields(auto &archive, T &value) {
  auto &[dtype, dims] = value;
  archive(dtype, dims);
}
template <Is<Buffer> T> void fields(auto &archive, T &value) {
  auto &[name, type, place, offset] = value;
  archive(name, type, place, offset);
}
/// Which inputs are constants follows from the buffers: the reader sets `constants`.
template <Is<StepSpec> T> void fields(auto &archive, T &value) {
  auto &[name, domain, op, version, attrs, inputs, outputs, constants] = value;
  archive(name, domain, op, version, attrs, inputs, outputs);
}
template <Is<InPlace> T> void fields(auto &archive, T &value) {
  auto &[output, input] = value;
  archive(output, input);
}
template <Is<Step> T> void fields(auto &archive, T &value) {
  auto &[spec, origin, moreOrigins, library, refusals, inputs, outputs, workspaceOffset, workspaceBytes, inPlace,
         bodies, hostOffset, hostBytes] = value;
  archive(spec, origin, moreOrigins, library, refusals, inputs, outputs, workspaceOffset, workspaceBytes, inPlace,
          bodies, hostOffset, hostBytes);
}
template <Is<Output> T> void fields(auto &archive, T &value) {
  auto &[name, buffer, updates] = value;
  archive(name, buffer, updates);
}
template <Is<CodeObject> T> void fields(auto &archive, T &value) {
  auto &[kind, target, bytes] = value;
  archive(kind, target, bytes);
}
template <Is<DataRecord> T> void fields(auto &archive, T &value) {
  auto &[kind, file, offset, bytes, hash] = value;
  archive(kind, file, offset, bytes, hash);
}
template <Is<FileRecord> T> void fields(auto &archive, T &value) {
  auto &[name, bytes] = value;
  archive(name, bytes);
}
template <Is<Plan> T> void fields(auto &archive, T &value) {
  auto &[buffers, steps, inputs, outputs, data, arenaBytes, hostBytes, metadata, code, device, threads] = value;
  archive(buffers, data, steps, inputs, outputs, arenaBytes, hostBytes, metadata, code, device,
          threads); // Data before what reads it.
}

} // namespace recast::plan_format
