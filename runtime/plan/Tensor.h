// Tensor types and views. Every tensor of the runtime is dense and row-major; shapes are static once a plan exists.
#pragma once
#include "runtime/plan/DType.h"
#include <span>
#include <string>
#include <vector>

namespace recast {

inline int64_t elementCount(std::span<const int64_t> dims) {
  int64_t count = 1;
  for (int64_t d : dims)
    count *= d;
  return count;
}

struct TensorType {
  DType dtype = DType::Undefined; ///< Undefined: an optional input or output that is absent.
  std::vector<int64_t> dims;

  bool present() const { return dtype != DType::Undefined; }
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t elems() const { return elementCount(dims); }
  size_t bytes() const { return static_cast<size_t>(elems()) * byteSize(dtype); }
  bool operator==(const TensorType &) const = default;
};

/// "f32[2,3]"; "-" where absent.
inline std::string toString(const TensorType &type) {
  if (!type.present())
    return "-";
  std::string text(name(type.dtype));
  text += '[';
  for (size_t i = 0; i < type.dims.size(); ++i)
    text += (i ? "," : "") + std::to_string(type.dims[i]);
  return text + ']';
}

/// A view of a tensor; owns nothing. `data` is aligned to 64 bytes except for views into files.
struct TensorRef {
  DType dtype = DType::Undefined;
  std::span<const int64_t> dims;
  void *data = nullptr;

  bool present() const { return dtype != DType::Undefined; }
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t elems() const { return elementCount(dims); }
  size_t bytes() const { return static_cast<size_t>(elems()) * byteSize(dtype); }
  template <typename T> T *as() const { return static_cast<T *>(data); }
};

} // namespace recast
