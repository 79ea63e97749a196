// Tensors as they lie in data files, and the conversions into a graph input's type.
#pragma once
#include "runtime/plan/Status.h"
#include "runtime/plan/Tensor.h"
#include <map>
#include <memory>

namespace recast {

/// A dense row-major tensor in a file or in memory; `data` may be unaligned, `owner` keeps it alive.
struct HostTensor {
  TensorType type;
  const std::byte *data = nullptr;
  std::shared_ptr<const void> owner;
};

using TensorMap = std::map<std::string, HostTensor, std::less<>>;

/// Elements of `dims` times `elementBytes`, or nullopt where that does not fit 63 bits or a dimension is negative.
std::optional<size_t> checkedBytes(std::span<const int64_t> dims, size_t elementBytes);

/// Floating-point types convert into each other (one rounding to nearest even), integer types too; nothing else does.
bool convertible(DType from, DType to);

/// Copies `count` elements. `from` may be unaligned. False where an integer does not fit: then `bad` holds it.
/// Precondition: convertible(from, to).
bool convert(DType from, const std::byte *source, DType to, void *target, int64_t count, std::string &bad);

/// The names of a map as "'a' (f32[2]), 'b' (i64[3])", for messages; long lists are cut.
std::string listTensors(const TensorMap &tensors);

} // namespace recast
