// Errors of the runtime libraries that link no LLVM. A Status carries one finished sentence for the user.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace recast {

/// Success, or one message. Success allocates nothing.
class [[nodiscard]] Status {
public:
  static Status success() { return Status(); }
  static Status error(std::string message) {
    Status status;
    status.text = std::move(message);
    return status;
  }
  bool ok() const { return !text; }
  /// Precondition: !ok().
  const std::string &message() const { return *text; }

private:
  std::optional<std::string> text;
};

/// A value, or the Status that explains why there is none.
template <typename T> class [[nodiscard]] Result {
public:
  Result(T value) : state(std::move(value)) {}
  Result(Status failure) : state(std::move(failure)) {}
  bool ok() const { return state.index() == 0; }
  explicit operator bool() const { return ok(); }
  T &operator*() { return std::get<0>(state); }
  const T &operator*() const { return std::get<0>(state); }
  T *operator->() { return &std::get<0>(state); }
  const T *operator->() const { return &std::get<0>(state); }
  const std::string &message() const { return std::get<1>(state).message(); }
  Status status() const { return ok() ? Status::success() : std::get<1>(state); }

private:
  std::variant<T, Status> state;
};

} // namespace recast
