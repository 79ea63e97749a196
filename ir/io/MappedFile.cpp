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
  file->file = descriptor;
  file->name = path;
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
  if (file >= 0)
    ::close(file);
}

Expected<std::unique_ptr<OutputFile>> OutputFile::create(const std::string &path) {
  std::unique_ptr<OutputFile> file(new OutputFile);
  file->path = path;
  if (path == "-") {
    file->descriptor = STDOUT_FILENO;
    return file;
  }
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    file->descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC); // a device or a pipe: a rename would replace it
    return file->descriptor < 0 ? failure(path, "cannot be written")
                                : Expected<std::unique_ptr<OutputFile>>(std::move(file));
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
  constexpr size_t kChunk = 64 << 20;
  while (size) {
    ssize_t done = ::write(descriptor, data, std::min(size, kChunk));
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

Error OutputFile::write(ArrayRef<char> bytes, const MappedFile *source) {
  bool isView = source && source->descriptor() >= 0 && bytes.begin() >= source->bytes().begin() &&
                bytes.end() <= source->bytes().end();
  if (!isView || bytes.size() < (1 << 20))
    return write(bytes);
  if (Error error = flush())
    return error;
  // The offsets of a tensor in the two files differ, so that copy_file_range splits every page. What is faster: blocks
  // set aside in one go, and the mapping's pages entered piece by piece before `write` reads them (without a fault
  // each). Neither is needed: where a file system or a kernel cannot, nothing else changes.
  ::fallocate(descriptor, 0, static_cast<off_t>(written), static_cast<off_t>(bytes.size()));
  constexpr size_t kPiece = 256 << 10;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (; !bytes.empty(); bytes = bytes.drop_front(std::min(bytes.size(), kPiece))) {
    ArrayRef<char> piece = bytes.take_front(kPiece);
    size_t begin = static_cast<size_t>(piece.begin() - source->bytes().begin()), within = begin % page;
    ::madvise(const_cast<char *>(piece.begin() - within), piece.size() + within, MADV_POPULATE_READ);
    written += piece.size();
    if (Error error = writeAll(descriptor, path, piece.data(), piece.size()))
      return error;
  }
  return Error::success();
}

Error OutputFile::skip(uint64_t bytes) {
  if (Error error = flush())
    return error;
  if (temporary.empty()) {
    written += bytes;
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
  bool isWhole = ::close(std::exchange(descriptor, -1)) == 0;
  if (!isWhole || (!temporary.empty() && ::rename(temporary.c_str(), path.c_str()) != 0))
    return failure(path, "cannot be written");
  temporary.clear();
  return Error::success();
}

} // namespace recast::io
