// A shared library that is opened at run time, and its functions by name.
#pragma once
#include "runtime/plan/Status.h"
#include <initializer_list>
#include <string>

namespace recast::device {

class Library {
public:
  /// The first of `names` that can be opened, for the life of the program. The error lists what was tried.
  static Result<Library> open(std::initializer_list<const char *> names, const std::string &what);
  /// The function, or null.
  void *find(const char *symbol) const;
  const std::string &name() const { return opened; }

private:
  Library(void *handle, std::string name) : handle(handle), opened(std::move(name)) {}
  void *handle;
  std::string opened;
};

/// Sets a member to the function of that name; an error of the function around it where there is none.
#define RECAST_FIND(Table, Member, Symbol)                                                                             \
  if (!((Table).Member = reinterpret_cast<decltype((Table).Member)>(library.find(#Symbol))))                           \
    return Status::error(library.name() + " has no function " #Symbol ": a newer one is needed");

} // namespace recast::device
