// A shared object that is opened from memory: generated code.
#pragma once
#include "runtime/plan/Status.h"
#include <string_view>

namespace recast {

/// Its functions are gone with it.
class SharedObject {
public:
  static Result<SharedObject> open(std::string_view bytes);
  SharedObject(SharedObject &&other) noexcept;
  SharedObject &operator=(SharedObject &&other) noexcept;
  ~SharedObject();
  /// Null where it has no such symbol.
  void *find(const std::string &name) const;

private:
  SharedObject() = default;
  void *handle = nullptr;
  int file = -1; ///< Open as long as the object is: the loader knows objects by their path, which has its number.
};

} // namespace recast
