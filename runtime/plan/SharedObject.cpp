#include "runtime/plan/SharedObject.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace recast {

Result<SharedObject> SharedObject::open(std::string_view bytes) {
  SharedObject object;
  object.file = memfd_create("recast-generated", MFD_CLOEXEC);
  if (object.file < 0)
    return Status::error("generated code cannot be loaded: there is no memory for a file");
  while (!bytes.empty()) {
    ssize_t count = write(object.file, bytes.data(), bytes.size());
    if (count <= 0)
      return Status::error("generated code cannot be loaded: there is no memory for it");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  std::string path = "/proc/self/fd/" + std::to_string(object.file);
  object.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object.handle)
    return object;
  const char *reason = dlerror();
  return Status::error("generated code cannot be loaded" + (reason ? ": " + std::string(reason) : ""));
}

SharedObject::SharedObject(SharedObject &&other) noexcept
    : handle(std::exchange(other.handle, nullptr)), file(std::exchange(other.file, -1)) {}

SharedObject &SharedObject::operator=(SharedObject &&other) noexcept {
  std::swap(handle, other.handle);
  std::swap(file, other.file);
  return *this;
}

SharedObject::~SharedObject() {
  if (handle)
    dlclose(handle);
  if (file >= 0)
    close(file);
}

void *SharedObject::find(const std::string &name) const { return dlsym(handle, name.c_str()); }

} // namespace recast
