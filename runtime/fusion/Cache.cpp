#include "runtime/fusion/Cache.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Process.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"

namespace recast::fusion {

std::string hashOf(std::string_view bytes) {
  return llvm::utohexstr(llvm::xxh3_64bits(llvm::StringRef(bytes)), /*LowerCase=*/true, /*Width=*/16);
}

Cache::Cache() {
  using llvm::sys::Process;
  if (auto own = Process::GetEnv("RECAST_CACHE"))
    folder = *own == "off" ? "" : *own;
  else if (auto base = Process::GetEnv("XDG_CACHE_HOME"))
    folder = *base + "/recast";
  else if (auto home = Process::GetEnv("HOME"))
    folder = *home + "/.cache/recast";
  if (!folder.empty() && llvm::sys::fs::create_directories(folder))
    folder.clear();
}

std::optional<std::string> Cache::read(const std::string &name) const {
  if (folder.empty())
    return std::nullopt;
  auto file = llvm::MemoryBuffer::getFile(folder + "/" + name, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file)
    return std::nullopt;
  // The contents, then their hash.
  llvm::StringRef text = (*file)->getBuffer();
  if (text.size() < 16)
    return std::nullopt;
  llvm::StringRef bytes = text.drop_back(16);
  if (hashOf(bytes) != text.take_back(16))
    return std::nullopt;
  return bytes.str();
}

void Cache::write(const std::string &name, std::string_view bytes) const {
  if (folder.empty())
    return;
  llvm::SmallString<128> path;
  int file;
  if (llvm::sys::fs::createUniqueFile(folder + "/.tmp-%%%%%%%%", file, path))
    return;
  bool isWritten;
  {
    llvm::raw_fd_ostream out(file, /*shouldClose=*/true);
    out << llvm::StringRef(bytes) << hashOf(bytes);
    out.flush();
    isWritten = !out.has_error();
    out.clear_error();
  }
  if (!isWritten || llvm::sys::fs::rename(path, folder + "/" + name))
    llvm::sys::fs::remove(path);
}

} // namespace recast::fusion
