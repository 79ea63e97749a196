#include "runtime/device/cuda/Library.h"
#include <dlfcn.h>

namespace recast::device {

Result<Library> Library::open(std::initializer_list<const char *> names, const std::string &what) {
  std::string tried;
  for (const char *name : names) {
    if (void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return Library(handle, name);
    tried += (tried.empty() ? "" : ", ") + std::string(name);
  }
  return Status::error(what + " cannot be opened (tried " + tried + ")");
}

void *Library::find(const char *symbol) const { return dlsym(handle, symbol); }

} // namespace recast::device
