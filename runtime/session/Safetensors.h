// The safetensors format (https://github.com/huggingface/safetensors): a JSON header, then the tensors' bytes.
#pragma once
#include "runtime/plan/Files.h"
#include "runtime/session/HostTensor.h"

namespace recast {

using Metadata = std::map<std::string, std::string>;

struct Safetensors {
  TensorMap tensors; ///< Views into the mapped file.
  Metadata metadata; ///< The header's __metadata__.
};

/// Checks all that the format demands: header length, JSON, dtypes, shapes, and that the tensors' bytes cover the file
/// without gap or overlap. An error names the file, and the tensor where one is to blame.
Result<Safetensors> readSafetensors(const std::string &path);

/// As readSafetensors, on bytes that `owner` keeps alive; `path` is for messages.
Result<Safetensors> parseSafetensors(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                     const std::string &path);

struct NamedTensor {
  std::string name;
  TensorType type;
  const void *data;
};

/// Writes everything but the rename. Tensors are ordered by element size, then by name, as the format's own library
/// does, so that each is aligned.
Result<std::unique_ptr<AtomicFile>> stageSafetensors(const std::string &path, std::vector<NamedTensor> tensors,
                                                     const Metadata &metadata = {});

/// stageSafetensors and the rename.
Status writeSafetensors(const std::string &path, std::vector<NamedTensor> tensors, const Metadata &metadata = {});

} // namespace recast
