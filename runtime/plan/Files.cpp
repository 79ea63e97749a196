#include "runtime/plan/Files.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace recast {

namespace {

std::string folderOf(const std::string &path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

} // namespace

Status systemError(const std::string &action, const std::string &path) {
  return Status::error("cannot " + action + " '" + path + "': " + std::strerror(errno));
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string &path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return systemError("read", path);
  struct stat info;
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return Status::error("cannot read '" + path + "': it is not a file");
  }
  size_t size = static_cast<size_t>(info.st_size);
  void *address = size ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0) : nullptr;
  Status failure = address == MAP_FAILED ? systemError("map", path) : Status::success();
  ::close(descriptor);
  if (!failure.ok())
    return failure;
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte *>(address), size}));
}

MappedFile::~MappedFile() {
  if (!view.empty())
    munmap(const_cast<std::byte *>(view.data()), view.size());
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::create(const std::string &path) {
  std::filesystem::path target(path);
  std::error_code ignored;
  if (std::filesystem::is_other(target, ignored)) { // a device or a pipe: a rename would replace it
    int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0)
      return systemError("write", path);
    return std::unique_ptr<AtomicFile>(new AtomicFile(path, "", descriptor));
  }
  std::string temporary = folderOf(path) + "/." + target.filename().string() + ".XXXXXX";
  int descriptor = mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0)
    return systemError("write", path);
  // mkostemp makes files private; a result file has the rights that any new file has.
  mode_t mask = umask(0);
  umask(mask);
  fchmod(descriptor, 0666 & ~mask);
  return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(temporary), descriptor));
}

AtomicFile::~AtomicFile() {
  if (descriptor >= 0)
    ::close(descriptor);
  if (!temporary.empty())
    unlink(temporary.c_str());
}

Status AtomicFile::write(const void *bytes, size_t count) {
  const char *next = static_cast<const char *>(bytes);
  while (count) {
    ssize_t written = ::write(descriptor, next, count);
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return systemError("write", path);
    next += written;
    count -= static_cast<size_t>(written);
  }
  return Status::success();
}

Status AtomicFile::commit() {
  bool flushed = temporary.empty() || fsync(descriptor) == 0; // What is no file cannot be flushed.
  bool closed = ::close(descriptor) == 0;
  descriptor = -1;
  if (!flushed || !closed || (!temporary.empty() && rename(temporary.c_str(), path.c_str()) != 0))
    return systemError("write", path);
  temporary.clear();
  // The rename itself is on the disk once the folder is; a file system that cannot flush folders is no error.
  int folder = ::open(folderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    ::close(folder);
  }
  return Status::success();
}

Status checkWritable(const std::string &path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return Status::error("cannot write '" + path + "': it is a folder");
  if (access(folderOf(path).c_str(), W_OK | X_OK) != 0)
    return systemError("write", path);
  return Status::success();
}

} // namespace recast
