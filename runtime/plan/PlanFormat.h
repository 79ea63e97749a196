// The fields of a plan in the order in which its file holds them: one list for writing and reading.
#pragma once
#include "runtime/plan/Plan.h"
#include <concepts>

namespace recast::plan_format {

inline constexpr char kMagic[8] = {'\x89', 'r', 'e', 'c', 'a', 's', 't', '\n'};
inline constexpr uint32_t kByteOrder = 0x01020304;
/// Changes with every change of what follows the first 16 bytes.
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kBlobAlignment = 64;

/// The first bytes of a file. All numbers of the format are little endian.
struct Header {
  char magic[8];
  uint32_t byteOrder, version;
  uint64_t fileBytes;  ///< All of the file, the checksum at its end included.
  uint64_t tableBytes; ///< Of the serialised Contents; blobs follow at the next multiple of 64.
};
static_assert(sizeof(Header) == 32);

/// XXH3 (64 bits) of everything before it.
using Checksum = uint64_t;

/// Where the bytes of a constant or of an initial state are.
struct DataRecord {
  enum Kind : uint8_t { Zeros, Blob, File } kind = Zeros;
  uint32_t file = 0;   ///< File: which of Contents::files.
  uint64_t offset = 0; ///< In that file, or from where blobs start.
  uint64_t bytes = 0;
  uint64_t hash = 0; ///< File: XXH3 of the bytes.
};

/// A file that data is in; its name is relative to the plan's folder.
struct FileRecord {
  std::string name;
  uint64_t bytes = 0;
};

/// A plan beside its data.
struct Contents {
  std::string writer; ///< "recast 0.1.0"
  std::vector<FileRecord> files;
  Plan plan;
};

template <typename T, typename U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

template <Is<TensorType> T> void fields(auto &archive, T &type) { archive(type.dtype, type.dims); }
template <Is<Buffer> T> void fields(auto &archive, T &b) { archive(b.name, b.type, b.place, b.offset); }
template <Is<StepSpec> T> void fields(auto &archive, T &s) {
  archive(s.name, s.domain, s.op, s.version, s.attrs, s.inputs, s.outputs);
}
template <Is<InPlace> T> void fields(auto &archive, T &pair) { archive(pair.output, pair.input); }
/// Which of the spec's inputs are constants follows from the buffers: see the plan's fields.
template <Is<Step> T> void fields(auto &archive, T &s) {
  archive(s.spec, s.origin, s.library, s.refusals, s.inputs, s.outputs, s.workspaceOffset, s.workspaceBytes, s.inPlace,
          s.bodies);
}
template <Is<Output> T> void fields(auto &archive, T &output) { archive(output.name, output.buffer, output.updates); }
template <Is<CodeObject> T> void fields(auto &archive, T &code) { archive(code.kind, code.target, code.bytes); }
template <Is<DataRecord> T> void fields(auto &archive, T &data) {
  archive(data.kind, data.file, data.offset, data.bytes, data.hash);
}
template <Is<FileRecord> T> void fields(auto &archive, T &file) { archive(file.name, file.bytes); }
template <Is<Plan> T> void fields(auto &archive, T &p) {
  archive(p.buffers, p.data, p.steps, p.inputs, p.outputs, p.arenaBytes, p.metadata, p.code, p.threads);
}
template <Is<Contents> T> void fields(auto &archive, T &contents) {
  archive(contents.writer, contents.files, contents.plan);
}

} // namespace recast::plan_format
