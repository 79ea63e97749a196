// What the files of indexingEntries() share.
#pragma once
#include "runtime/reference/Loops.h"
#include "runtime/reference/Reference.h"

namespace recast::reference {

/// "index 7 at position 3 is outside [-4, 3]", as an error of the step.
inline Status indexError(const StepSpec &spec, int64_t index, int64_t position, int64_t size) {
  return stepError(spec, "index " + std::to_string(index) + " at position " + std::to_string(position) +
                             " is outside [" + std::to_string(-size) + ", " + std::to_string(size - 1) + "]");
}

/// An error for the first element of `indices` that is outside [-size, size).
inline Status checkIndices(const StepSpec &spec, const TensorRef &indices, int64_t size) {
  int64_t count = indices.elems();
  for (int64_t i = 0; i < count; ++i)
    if (int64_t index = loadIndex(indices, i); index < -size || index >= size)
      return indexError(spec, index, i, size);
  return Status::success();
}

/// `index` counted from the front. Precondition: it is in [-size, size).
inline int64_t fromFront(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

/// The element offset at which the slice of tuple `tuple` of GatherND or ScatterND begins, without batch dims.
/// `dims` and `strides` are those of the indexed dimensions. An error where an index is out of range.
inline Status tupleOffset(const StepSpec &spec, const TensorRef &indices, int64_t tuple, std::span<const int64_t> dims,
                          const int64_t *strides, int64_t &offset) {
  offset = 0;
  int64_t width = static_cast<int64_t>(dims.size());
  for (int64_t k = 0; k < width; ++k) {
    int64_t index = loadIndex(indices, tuple * width + k);
    if (index < -dims[k] || index >= dims[k])
      return indexError(spec, index, tuple * width + k, dims[k]);
    offset += fromFront(index, dims[k]) * strides[k];
  }
  return Status::success();
}

/// ScatterElements, and Scatter, its name before version 11.
Status runScatterElements(const StepSpec &spec, const KernelArgs &args);
Status runScatterND(const StepSpec &spec, const KernelArgs &args);
size_t scatterWorkspaceBytes(const StepSpec &spec);
std::string refusesScatter(const StepSpec &spec);

} // namespace recast::reference
