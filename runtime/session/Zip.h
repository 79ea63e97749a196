// Zip archives as .npz files need them: stored and deflated members, 64-bit sizes.
#pragma once
#include "runtime/plan/Status.h"
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace recast {

struct ZipMember {
  std::string name;
  std::span<const std::byte> bytes; ///< Uncompressed: a view into the file where the member is stored.
  std::shared_ptr<const void> owner;
};

/// Every member, checked against its CRC-32.
Result<std::vector<ZipMember>> readZip(const std::string &path);

/// As readZip, on bytes that `owner` keeps alive; `path` is for messages.
Result<std::vector<ZipMember>> parseZip(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                        const std::string &path);

} // namespace recast
