// Files: mapped for reading, replaced whole when written.
#pragma once
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <memory>
#include <string>

namespace recast::io {

/// A read-only view of a file's bytes. Pages are read when they are touched.
class MappedFile {
public:
  static llvm::Expected<std::shared_ptr<MappedFile>> open(const std::string &path);
  /// All of standard input, in memory.
  static llvm::Expected<std::shared_ptr<MappedFile>> readStdin();
  ~MappedFile();
  llvm::ArrayRef<char> bytes() const { return view; }
  /// As it was opened; empty for standard input.
  const std::string &path() const { return name; }
  /// The open file; -1 for standard input.
  int descriptor() const { return file; }

private:
  MappedFile() = default;
  llvm::ArrayRef<char> view;
  void *mapping = nullptr;
  int file = -1;
  std::string name, owned;
};

/// A file that appears under its name when `commit` succeeds and not before: a temporary file beside it, then a rename.
/// Without commit nothing is left. The name "-" is standard output; what exists and is no file (/dev/null, a pipe) is
/// written to as it is.
class OutputFile {
public:
  static llvm::Expected<std::unique_ptr<OutputFile>> create(const std::string &path);
  ~OutputFile();
  llvm::Error write(llvm::ArrayRef<char> bytes);
  /// The same for bytes that may be a view of `source`, at the speed of a file copy.
  llvm::Error write(llvm::ArrayRef<char> bytes, const MappedFile *source);
  llvm::Error write(const std::string &text) { return write(llvm::ArrayRef(text.data(), text.size())); }
  /// Leaves a hole that reads as zeros.
  llvm::Error skip(uint64_t bytes);
  uint64_t position() const { return written + buffered.size(); }
  llvm::Error commit();

private:
  OutputFile() = default;
  llvm::Error flush();
  std::string path, temporary;
  int descriptor = -1;
  uint64_t written = 0;
  std::string buffered;
};

} // namespace recast::io
