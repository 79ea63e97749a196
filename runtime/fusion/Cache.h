// Files by content: what was compiled once is there for the next process. Safe between processes: files appear by
// rename, and one that is damaged counts as missing.
#pragma once
#include <optional>
#include <string>

namespace recast::fusion {

/// 64-bit hash of `bytes` as 16 hexadecimal digits.
std::string hashOf(std::string_view bytes);

class Cache {
public:
  /// In $RECAST_CACHE, else in $XDG_CACHE_HOME/recast or ~/.cache/recast; RECAST_CACHE=off, or a folder that cannot be
  /// made: nothing is kept.
  Cache();
  std::optional<std::string> read(const std::string &name) const;
  void write(const std::string &name, std::string_view bytes) const;

private:
  std::string folder;
};

} // namespace recast::fusion
