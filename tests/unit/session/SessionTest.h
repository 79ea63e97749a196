// What the session's tests share: a folder that goes away, and files from literals.
#pragma once
#include "runtime/plan/Status.h"
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace recast::test {

class TempFolder {
public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "recast-session-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string &name) const { return (path / name).string(); }
  /// Names, hidden ones included, sorted.
  std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(path))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
  std::filesystem::path path;
};

inline void writeFile(const std::string &path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string readFile(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::span<const std::byte> bytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte *>(text.data()), text.size()};
}

/// For a parser's arguments: the bytes of a file, on the heap and exactly as many as there are, so that
/// AddressSanitizer sees an access beyond them.
struct HeapFile {
  explicit HeapFile(std::string_view text) : owner(std::make_shared<std::vector<char>>(text.begin(), text.end())) {}
  std::span<const std::byte> bytes() const { return bytesOf({owner->data(), owner->size()}); }
  std::shared_ptr<std::vector<char>> owner;
};

template <typename T> std::string rawBytes(std::vector<T> values) {
  return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)};
}

inline void expectError(const Status &status, const std::vector<std::string> &parts) {
  ASSERT_FALSE(status.ok());
  for (const std::string &part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << "'" << part << "' is not in: " << status.message();
}

} // namespace recast::test
