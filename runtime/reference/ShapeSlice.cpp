// Slice, Pad, and their gradients.
#include "runtime/reference/Loops.h"
#include "runtime/reference/ShapeCopy.h"
#include "runtime/reference/ShapeKernels.h"
#include <cstring>

namespace recast::reference {
namespace {

// Slice -------------------------------------------------------------------------------------------------------------

/// For each axis of the data: the first element, the step, and the number of elements.
struct SliceRange {
  IndexArray start{}, step{}, size{};
};

/// Reads starts, ends, axes and steps, from the attributes (Slice 1) or from the inputs that begin at `firstInput`.
Status resolveSlice(const StepSpec &spec, const KernelArgs &args, std::span<const int64_t> dims, size_t firstInput,
                    SliceRange &range) {
  int64_t rank = static_cast<int64_t>(dims.size());
  for (int64_t d = 0; d < rank; ++d) {
    range.step[d] = 1;
    range.size[d] = dims[d];
  }
  bool fromInputs = present(args.inputs, firstInput);
  auto has = [&](size_t which, const char *attribute) {
    return fromInputs ? present(args.inputs, firstInput + which) : spec.attrs.has(attribute);
  };
  auto value = [&](size_t which, const char *attribute, int64_t i) {
    return fromInputs ? loadIndex(args.inputs[firstInput + which], i) : spec.attrs.intsView(attribute)[i];
  };
  int64_t count =
      fromInputs ? args.inputs[firstInput].elems() : static_cast<int64_t>(spec.attrs.intsView("starts").size());
  bool hasAxes = has(2, "axes"), hasSteps = fromInputs && has(3, "steps");
  for (int64_t i = 0; i < count; ++i) {
    int64_t given = hasAxes ? value(2, "axes", i) : i, axis = normalizeAxis(given, rank);
    if (axis < 0)
      return stepError(spec, "axis " + std::to_string(given) + " is outside the rank " + std::to_string(rank));
    int64_t size = dims[axis], step = hasSteps ? value(3, "steps", i) : 1;
    if (step == 0)
      return stepError(spec, "a step of 0 along axis " + std::to_string(given));
    int64_t start = value(0, "starts", i), end = value(1, "ends", i);
    start += start < 0 ? size : 0;
    end += end < 0 ? size : 0;
    start =
        step > 0 ? std::clamp<int64_t>(start, 0, size) : std::clamp<int64_t>(start, 0, std::max<int64_t>(size - 1, 0));
    end = step > 0 ? std::clamp<int64_t>(end, 0, size) : std::clamp<int64_t>(end, -1, size - 1);
    // The distance divided by the step, rounded up; a step far beyond the size would overflow its negation.
    step = std::clamp<int64_t>(step, -size - 1, size + 1);
    int64_t distance = step > 0 ? end - start : start - end, stride = step > 0 ? step : -step;
    range.start[axis] = start;
    range.step[axis] = step;
    range.size[axis] = size == 0 || distance <= 0 ? 0 : (distance + stride - 1) / stride;
  }
  return Status::success();
}

Status checkSize(const StepSpec &spec, const SliceRange &range, std::span<const int64_t> sliced) {
  for (size_t d = 0; d < sliced.size(); ++d)
    if (range.size[d] != sliced[d])
      return stepError(spec, "slices " + std::to_string(range.size[d]) + " elements along axis " + std::to_string(d) +
                                 " where the plan has " + std::to_string(sliced[d]));
  return Status::success();
}

// Pad ---------------------------------------------------------------------------------------------------------------

enum class PadMode { Constant, Reflect, Edge, Wrap };

PadMode padMode(const StepSpec &spec) {
  std::string_view mode = spec.attrs.stringView("mode", "constant");
  return mode == "reflect" ? PadMode::Reflect
         : mode == "edge"  ? PadMode::Edge
         : mode == "wrap"  ? PadMode::Wrap
                           : PadMode::Constant;
}

/// Elements that are put before and after the data along each axis; negative ones remove.
struct Pads {
  IndexArray before{}, after{};
};

Status resolvePads(const StepSpec &spec, const KernelArgs &args, std::span<const int64_t> inner,
                   std::span<const int64_t> outer, size_t padsInput, size_t axesInput, Pads &pads) {
  int64_t rank = static_cast<int64_t>(inner.size());
  std::span<const int64_t> list = spec.attrs.intsView("pads");
  if (list.empty())
    list = spec.attrs.intsView("paddings"); // Pad 1
  bool fromInput = present(args.inputs, padsInput);
  bool hasAxes = present(args.inputs, axesInput);
  int64_t count = hasAxes ? args.inputs[axesInput].elems() : rank;
  int64_t given = fromInput ? args.inputs[padsInput].elems() : static_cast<int64_t>(list.size());
  if (given != 2 * count)
    return stepError(spec, std::to_string(given) + " pads for " + std::to_string(count) + " axes");
  for (int64_t i = 0; i < count; ++i) {
    int64_t axis = normalizeAxis(hasAxes ? loadIndex(args.inputs[axesInput], i) : i, rank);
    if (axis < 0)
      return stepError(spec, "an axis is outside the rank " + std::to_string(rank));
    pads.before[axis] = fromInput ? loadIndex(args.inputs[padsInput], i) : list[i];
    pads.after[axis] = fromInput ? loadIndex(args.inputs[padsInput], count + i) : list[count + i];
  }
  for (int64_t d = 0; d < rank; ++d) {
    if (inner[d] + pads.before[d] + pads.after[d] != outer[d])
      return stepError(spec, "pads " + std::to_string(pads.before[d]) + " and " + std::to_string(pads.after[d]) +
                                 " of axis " + std::to_string(d) + " do not lead from " + std::to_string(inner[d]) +
                                 " to " + std::to_string(outer[d]));
    if (inner[d] == 0 && outer[d] > 0 && padMode(spec) != PadMode::Constant)
      return stepError(spec, "axis " + std::to_string(d) + " is empty: there is nothing to repeat");
  }
  return Status::success();
}

/// The element of an axis of `size` that position `at` (negative before it, >= size after it) shows.
int64_t padSource(PadMode mode, int64_t at, int64_t size) {
  if (at >= 0 && at < size)
    return at;
  if (mode == PadMode::Edge)
    return at < 0 ? 0 : size - 1;
  // Reflection leaves out the border elements: its period is 2 * (size - 1).
  int64_t period = mode == PadMode::Wrap ? size : std::max<int64_t>(2 * (size - 1), 1);
  int64_t phase = ((at % period) + period) % period;
  return phase < size ? phase : period - phase;
}

/// The part of the data that constant padding keeps, as a copy from the inner tensor to the outer one or back.
StridedCopy keptPart(std::span<const int64_t> inner, std::span<const int64_t> outer, const Pads &pads, bool inward) {
  IndexArray in = denseStrides(inner), out = denseStrides(outer), first{}, size{};
  int64_t inOffset = 0, outOffset = 0;
  for (size_t d = 0; d < inner.size(); ++d) {
    first[d] = std::max<int64_t>(0, -pads.before[d]);
    size[d] = std::max<int64_t>(0, std::min(inner[d], outer[d] - pads.before[d]) - first[d]);
    inOffset += first[d] * in[d];
    outOffset += (first[d] + pads.before[d]) * out[d];
  }
  StridedCopy copy(inward ? outOffset : inOffset, inward ? inOffset : outOffset);
  for (size_t d = 0; d < inner.size(); ++d)
    copy.add(size[d], inward ? out[d] : in[d], inward ? in[d] : out[d]);
  return copy;
}

template <typename T> void fill(const TensorRef &y, T value) {
  parallelFor(y.elems(), kGrain,
              [&](int64_t begin, int64_t end) { std::fill(y.as<T>() + begin, y.as<T>() + end, value); });
}

/// For the rows [begin, end) of the outer tensor (runs along its last axis): calls body with the offset of the row, and
/// with that of the inner tensor's row which it shows.
template <typename Body>
void walkPadRows(std::span<const int64_t> inner, std::span<const int64_t> outer, const Pads &pads, PadMode mode,
                 int64_t begin, int64_t end, Body &&body) {
  IndexArray in = denseStrides(inner);
  int64_t last = static_cast<int64_t>(inner.size()) - 1;
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, offset = 0;
    for (int64_t d = last; d-- > 0;) {
      offset += padSource(mode, rest % outer[d] - pads.before[d], inner[d]) * in[d];
      rest /= outer[d];
    }
    body(row * outer[last], offset);
  }
}

} // namespace

Status runSlice(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  SliceRange range;
  if (Status status = resolveSlice(spec, args, x.dims, 1, range); !status.ok())
    return status;
  if (Status status = checkSize(spec, range, y.dims); !status.ok())
    return status;
  IndexArray from = denseStrides(x.dims), to = denseStrides(y.dims);
  int64_t offset = 0;
  for (int64_t d = 0; d < x.rank(); ++d)
    offset += range.start[d] * from[d];
  StridedCopy copy(offset, 0);
  for (int64_t d = 0; d < x.rank(); ++d)
    copy.add(range.size[d], range.step[d] * from[d], to[d]);
  copy.run(x, y);
  return Status::success();
}

Status runSliceGrad(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &dy = args.inputs[0], &dx = args.outputs[0];
  SliceRange range;
  if (Status status = resolveSlice(spec, args, dx.dims, 2, range); !status.ok())
    return status;
  if (Status status = checkSize(spec, range, dy.dims); !status.ok())
    return status;
  std::memset(dx.data, 0, dx.bytes());
  IndexArray from = denseStrides(dy.dims), to = denseStrides(dx.dims);
  int64_t offset = 0;
  for (int64_t d = 0; d < dx.rank(); ++d)
    offset += range.start[d] * to[d];
  StridedCopy copy(0, offset);
  for (int64_t d = 0; d < dx.rank(); ++d)
    copy.add(range.size[d], from[d], range.step[d] * to[d]);
  copy.run(dy, dx);
  return Status::success();
}

std::string refusesPad(const StepSpec &spec) {
  std::string_view mode = spec.attrs.stringView("mode", "constant");
  if (mode == "constant" || mode == "reflect" || mode == "edge" || mode == "wrap")
    return "";
  return "mode " + std::string(mode) + " is not supported";
}

Status runPad(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  PadMode mode = padMode(spec);
  Pads pads;
  if (Status status = resolvePads(spec, args, x.dims, y.dims, 1, 3, pads); !status.ok())
    return status;
  if (mode == PadMode::Constant || x.rank() == 0) {
    dispatchAny(y.dtype, [&]<typename T>() {
      T value = present(args.inputs, 2) ? *args.inputs[2].as<T>() : roundTo<T>(spec.attrs.getFloat("value", 0));
      fill(y, value);
    });
    keptPart(x.dims, y.dims, pads, false).run(x, y);
    return Status::success();
  }
  int64_t last = x.rank() - 1, columns = y.dims[last], size = x.dims[last];
  dispatchAny(y.dtype, [&]<typename T>() {
    parallelFor(columns ? y.elems() / columns : 0, grainFor(columns), [&](int64_t begin, int64_t end) {
      walkPadRows(x.dims, y.dims, pads, mode, begin, end, [&](int64_t to, int64_t from) {
        for (int64_t i = 0; i < columns; ++i)
          y.as<T>()[to + i] = x.as<T>()[from + padSource(mode, i - pads.before[last], size)];
      });
    });
  });
  return Status::success();
}

/// Sums of repeated elements, in double.
size_t padGradWorkspaceBytes(const StepSpec &spec) {
  return padMode(spec) == PadMode::Constant ? 0 : static_cast<size_t>(spec.outputs[0].elems()) * sizeof(double);
}

Status runPadGrad(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &dy = args.inputs[0], &dx = args.outputs[0];
  PadMode mode = padMode(spec);
  Pads pads;
  if (Status status = resolvePads(spec, args, dx.dims, dy.dims, 2, 3, pads); !status.ok())
    return status;
  if (mode == PadMode::Constant || dx.rank() == 0) {
    std::memset(dx.data, 0, dx.bytes());
    keptPart(dx.dims, dy.dims, pads, true).run(dy, dx);
    return Status::success();
  }
  // Leading axes without pads are independent of each other; within one of them sums are in dy's order.
  int64_t leading = 0, last = dx.rank() - 1;
  while (leading < last && pads.before[leading] == 0 && pads.after[leading] == 0)
    ++leading;
  int64_t outer = product(dx.dims, 0, leading), part = product(dx.dims, leading, dx.rank());
  int64_t rows = product(dy.dims, leading, last), columns = dy.dims[last], size = dx.dims[last];
  double *sums = reinterpret_cast<double *>(args.workspace.data());
  dispatchFloat(dx.dtype, [&]<typename T>() {
    parallelFor(outer, grainFor(rows * columns), [&](int64_t begin, int64_t end) {
      std::fill(sums + begin * part, sums + end * part, 0.0);
      walkPadRows(dx.dims, dy.dims, pads, mode, begin * rows, end * rows, [&](int64_t from, int64_t to) {
        for (int64_t i = 0; i < columns; ++i)
          sums[to + padSource(mode, i - pads.before[last], size)] += load(dy.as<T>()[from + i]);
      });
      for (int64_t i = begin * part; i < end * part; ++i)
        dx.as<T>()[i] = roundTo<T>(sums[i]);
    });
  });
  return Status::success();
}

} // namespace recast::reference
