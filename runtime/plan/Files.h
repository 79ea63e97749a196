// Reading files through mmap, and writing them so that they are never seen half-written.
#pragma once
#include "runtime/plan/Status.h"
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace recast {

/// A whole file, mapped read-only for as long as the object lives.
class MappedFile {
public:
  /// An error names the file and what the system said.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string &path);
  ~MappedFile();
  MappedFile(const MappedFile &) = delete;
  std::span<const std::byte> bytes() const { return view; }

private:
  explicit MappedFile(std::span<const std::byte> view) : view(view) {}
  std::span<const std::byte> view;
};

/// A file that appears under its name when commit() succeeds: until then it is a hidden temporary beside it, which the
/// destructor removes. What exists and is no file (/dev/null, a pipe) is written to as it is.
class AtomicFile {
public:
  static Result<std::unique_ptr<AtomicFile>> create(const std::string &path);
  ~AtomicFile();
  AtomicFile(const AtomicFile &) = delete;
  Status write(const void *bytes, size_t count);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  /// Flushes to the disk, renames, and flushes the folder.
  Status commit();

private:
  AtomicFile(std::string path, std::string temporary, int descriptor)
      : path(std::move(path)), temporary(std::move(temporary)), descriptor(descriptor) {}
  std::string path, temporary;
  int descriptor;
};

/// Whether a file could be created at `path`: asked before a long run, so that it does not fail at its end.
Status checkWritable(const std::string &path);

/// "'path': No such file or directory", from errno.
Status systemError(const std::string &action, const std::string &path);

} // namespace recast
