#include "ir/io/MappedFile.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace llvm;
namespace recast::io {

static Error failure(const std::string &path, const char *what) {
  return createStringError(path + ": " + what + ": " + std::strerror(errno));
}

Expected<std::shared_ptr<MappedFile>> MappedFile::open(const std::string &path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return failure(path, "cannot be opened");
  struct stat info;
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    bool isFolder = S_ISDIR(info.st_mode);
    ::close(descriptor);
    return createStringError(path + ": is " + (isFolder ? "a folder" : "no regular file") + ", a file is needed");
  }
  std::shared_ptr<MappedFile> file(new MappedFile);
  if (size_t size = static_cast<size_t>(info.st_size)) {
    file->mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (file->mapping == MAP_FAILED) {
      file->mapping = nullptr;
      ::close(descriptor);
      return failure(path, "cannot be mapped");
    }
    file->view = ArrayRef(static_cast<const char *>(file->mapping), size);
  }
  ::close(descriptor);
  return file;
}

Expected<std::shared_ptr<MappedFile>> MappedFile::readStdin() {
  std::shared_ptr<MappedFile> file(new MappedFile);
  char chunk[1 << 16];
  ssize_t got;
  while ((got = ::read(STDIN_FILENO, chunk, sizeof chunk)) > 0)
    file->owned.append(chunk, static_cast<size_t>(got));
  if (got < 0)
    return failure("standard input", "cannot be read");
  file->view = ArrayRef(file->owned.data(), file->owned.size());
  return file;
}

MappedFile::~MappedFile() {
  if (mapping)
    ::munmap(mapping, view.size());
}

Expected<std::unique_ptr<OutputFile>> OutputFile::create(const std::string &path) {
  std::unique_ptr<OutputFile> file(new OutputFile);
  file->path = path;
  if (path == "-") {
    file->descriptor = STDOUT_FILENO;
    return file;
  }
  file->temporary = path + ".XXXXXX";
  file->descriptor = ::mkstemp(file->temporary.data());
  if (file->descriptor < 0) {
    file->temporary.clear();
    return failure(path, "cannot be written");
  }
  ::fchmod(file->descriptor, 0644);
  return file;
}

OutputFile::~OutputFile() {
  if (descriptor >= 0 && descriptor != STDOUT_FILENO)
    ::close(descriptor);
  if (!temporary.empty())
    ::unlink(temporary.c_str());
}

static Error writeAll(int descriptor, const std::string &path, const char *data, size_t size) {
  constexpr size_t kChunk = 16 << 20, kPage = 4096;
  while (size) {
    size_t chunk = std::min(size, kChunk);
    // Much of what is written is a mapped file: map a chunk at once instead of a page fault each 64 KiB. Failing is
    // fine.
    uintptr_t first = reinterpret_cast<uintptr_t>(data) & ~(kPage - 1);
    ::madvise(reinterpret_cast<void *>(first), reinterpret_cast<uintptr_t>(data) + chunk - first, MADV_POPULATE_READ);
    ssize_t done = ::write(descriptor, data, chunk);
    if (done < 0 && errno == EINTR)
      continue;
    if (done <= 0)
      return failure(path, "cannot be written");
    data += done;
    size -= static_cast<size_t>(done);
  }
  return Error::success();
}

Error OutputFile::flush() {
  if (Error error = writeAll(descriptor, path, buffered.data(), buffered.size()))
    return error;
  written += buffered.size();
  buffered.clear();
  return Error::success();
}

Error OutputFile::write(ArrayRef<char> bytes) {
  if (bytes.size() < (1 << 16)) {
    buffered.append(bytes.data(), bytes.size());
    return buffered.size() < (1 << 20) ? Error::success() : flush();
  }
  if (Error error = flush())
    return error;
  written += bytes.size();
  return writeAll(descriptor, path, bytes.data(), bytes.size());
}

Error OutputFile::skip(uint64_t bytes) {
  if (Error error = flush())
    return error;
  if (descriptor == STDOUT_FILENO) {
    std::string zeros(bytes, '\0');
    return writeAll(descriptor, path, zeros.data(), zeros.size());
  }
  written += bytes;
  if (::ftruncate(descriptor, static_cast<off_t>(written)) != 0 ||
      ::lseek(descriptor, static_cast<off_t>(written), SEEK_SET) < 0)
    return failure(path, "cannot be written");
  return Error::success();
}

Error OutputFile::commit() {
  if (Error error = flush())
    return error;
  if (path == "-")
    return Error::success();
  if (::close(std::exchange(descriptor, -1)) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0)
    return failure(path, "cannot be written");
  temporary.clear();
  return Error::success();
}

} // namespace recast::io
