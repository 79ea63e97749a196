#include "runtime/reference/Loops.h"
#include "runtime/reference/ShapeCopy.h"
#include "runtime/reference/ShapeKernels.h"
#include <cstring>

namespace recast::reference {
namespace {

/// Reshape, Flatten, Squeeze, Unsqueeze: the plan knows the output's dims, so only the bytes move, if at all.
Status runView(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  if (x.elems() != y.elems())
    return stepError(spec, "cannot view " + std::to_string(x.elems()) + " elements as " + std::to_string(y.elems()));
  copyDense(x, y);
  return Status::success();
}

Status runTranspose(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  std::span<const int64_t> perm = spec.attrs.intsView("perm");
  IndexArray from = denseStrides(x.dims), to = denseStrides(y.dims);
  StridedCopy copy;
  for (int64_t d = 0; d < y.rank(); ++d) {
    int64_t axis = perm.empty() ? y.rank() - 1 - d : normalizeAxis(perm[d], x.rank());
    if (axis < 0 || x.dims[axis] != y.dims[d])
      return stepError(spec, "perm does not fit the input and the output");
    copy.add(y.dims[d], from[axis], to[d]);
  }
  copy.run(x, y);
  return Status::success();
}

Status runConcat(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &y = args.outputs[0];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 1), y.rank());
  if (axis < 0)
    return stepError(spec, "axis is outside the rank " + std::to_string(y.rank()));
  int64_t outer = product(y.dims, 0, axis), row = product(y.dims, axis, y.rank()), offset = 0;
  for (const TensorRef &x : args.inputs) {
    int64_t part = product(x.dims, axis, x.rank());
    if (offset + part > row)
      return stepError(spec, "the inputs are longer than the output along axis " + std::to_string(axis));
    StridedCopy copy(0, offset);
    copy.add(outer, part, row);
    copy.add(part, 1, 1);
    copy.run(x, y);
    offset += part;
  }
  return Status::success();
}

/// The sizes of all forms of Split (attribute, input, num_outputs, equal parts) are those of the plan's outputs.
Status runSplit(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), x.rank());
  if (axis < 0)
    return stepError(spec, "axis is outside the rank " + std::to_string(x.rank()));
  int64_t outer = product(x.dims, 0, axis), row = product(x.dims, axis, x.rank()), offset = 0;
  bool sizesFromInput = present(args.inputs, 1);
  int64_t inner = product(x.dims, axis + 1, x.rank());
  for (size_t i = 0; i < args.outputs.size(); ++i) {
    const TensorRef &y = args.outputs[i];
    // An output that nothing reads has no type, but its part still counts.
    if (!y.present() && !sizesFromInput)
      return stepError(spec, "output " + std::to_string(i) + " is absent and its size unknown");
    int64_t part = y.present() ? product(y.dims, axis, y.rank()) : loadIndex(args.inputs[1], i) * inner;
    if (offset + part > row)
      return stepError(spec, "the outputs are longer than the input along axis " + std::to_string(axis));
    if (y.present()) {
      StridedCopy copy(offset, 0);
      copy.add(outer, row, part);
      copy.add(part, 1, 1);
      copy.run(x, y);
    }
    offset += part;
  }
  return Status::success();
}

Status runExpand(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  IndexArray from = denseStrides(x.dims), to = denseStrides(y.dims);
  int64_t skip = y.rank() - x.rank();
  StridedCopy copy;
  for (int64_t d = 0; d < y.rank(); ++d) {
    bool repeats = d < skip || x.dims[d - skip] == 1;
    if (!repeats && x.dims[d - skip] != y.dims[d])
      return stepError(spec, "cannot expand " + std::to_string(x.dims[d - skip]) + " to " + std::to_string(y.dims[d]));
    copy.add(y.dims[d], repeats ? 0 : from[d - skip], to[d]);
  }
  copy.run(x, y);
  return Status::success();
}

Status runTile(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  IndexArray from = denseStrides(x.dims), to = denseStrides(y.dims);
  StridedCopy copy;
  for (int64_t d = 0; d < y.rank(); ++d) {
    int64_t repeats = loadIndex(args.inputs[1], d);
    if (x.dims[d] * repeats != y.dims[d])
      return stepError(spec, std::to_string(repeats) + " repeats of " + std::to_string(x.dims[d]) + " do not give " +
                                 std::to_string(y.dims[d]));
    copy.add(repeats, 0, x.dims[d] * to[d]);
    copy.add(x.dims[d], from[d], to[d]);
  }
  copy.run(x, y);
  return Status::success();
}

Status runShape(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0];
  auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + x.rank() : at, 0, x.rank()); };
  int64_t start = clamped(spec.attrs.getInt("start", 0)), end = clamped(spec.attrs.getInt("end", x.rank()));
  if (start < end)
    std::copy(x.dims.begin() + start, x.dims.begin() + end, args.outputs[0].as<int64_t>());
  return Status::success();
}

Status runSize(const StepSpec &spec, const KernelArgs &args) {
  *args.outputs[0].as<int64_t>() = args.inputs[0].elems();
  return Status::success();
}

/// start + i * delta. In the 16-bit types too the sum is rounded once, as stash_type (Range 27) has it.
Status runRange(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &y = args.outputs[0];
  dispatchAny(y.dtype, [&]<typename T>() {
    T *out = y.as<T>();
    int64_t count = y.elems();
    if constexpr (isFloatType<T>) {
      double start = load(*args.inputs[0].as<T>()), delta = load(*args.inputs[2].as<T>());
      for (int64_t i = 0; i < count; ++i)
        out[i] = roundTo<T>(start + static_cast<double>(i) * delta);
    } else {
      // Unsigned arithmetic: overflow wraps.
      uint64_t start = static_cast<uint64_t>(*args.inputs[0].as<T>()),
               delta = static_cast<uint64_t>(*args.inputs[2].as<T>());
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<T>(start + static_cast<uint64_t>(i) * delta);
    }
  });
  return Status::success();
}

Status runTrilu(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  if (x.rank() < 2)
    return stepError(spec, "the input needs at least two dimensions");
  bool upper = spec.attrs.getInt("upper", 1) != 0;
  int64_t rows = x.dims[x.rank() - 2], columns = x.dims[x.rank() - 1];
  // Beyond these bounds a larger k changes nothing, and sums could overflow.
  int64_t k = present(args.inputs, 1) ? std::clamp(loadIndex(args.inputs[1], 0), -rows - 1, columns + 1) : 0;
  size_t bytes = byteSize(x.dtype), rowBytes = static_cast<size_t>(columns) * bytes;
  const char *from = x.as<char>();
  char *to = y.as<char>();
  parallelFor(product(x.dims, 0, x.rank() - 1), grainFor(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      // Upper keeps columns >= i + k, lower those <= i + k.
      int64_t i = row % rows, cut = std::clamp<int64_t>(i + k + (upper ? 0 : 1), 0, columns);
      size_t at = static_cast<size_t>(row) * rowBytes, split = static_cast<size_t>(cut) * bytes;
      size_t keep = at + (upper ? split : 0), zero = at + (upper ? 0 : split);
      size_t keepBytes = upper ? rowBytes - split : split;
      if (from != to)
        std::memcpy(to + keep, from + keep, keepBytes);
      std::memset(to + zero, 0, rowBytes - keepBytes);
    }
  });
  return Status::success();
}

Status runEyeLike(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &y = args.outputs[0];
  if (y.rank() != 2)
    return stepError(spec, "the input needs two dimensions");
  int64_t rows = y.dims[0], columns = y.dims[1], k = spec.attrs.getInt("k", 0);
  std::memset(y.data, 0, y.bytes());
  dispatchAny(y.dtype, [&]<typename T>() {
    for (int64_t i = std::max<int64_t>(0, -k); i < rows && i + k < columns; ++i)
      y.as<T>()[i * columns + i + k] = roundTo<T>(1);
  });
  return Status::success();
}

template <bool toDepth> Status runDepthSpace(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  StridedCopy copy;
  std::string problem =
      addDepthLoops(spec.attrs, toDepth ? y.dims : x.dims, toDepth ? x.dims : y.dims,
                    [&](int64_t size, int64_t deepStride, int64_t wideStride) {
                      copy.add(size, toDepth ? wideStride : deepStride, toDepth ? deepStride : wideStride);
                    });
  if (!problem.empty())
    return stepError(spec, problem);
  copy.run(x, y);
  return Status::success();
}

Status runReverseSequence(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  int64_t batchAxis = spec.attrs.getInt("batch_axis", 1), timeAxis = spec.attrs.getInt("time_axis", 0);
  if (x.rank() < 2 || batchAxis + timeAxis != 1 || batchAxis * timeAxis != 0)
    return stepError(spec, "batch_axis and time_axis must be 0 and 1");
  int64_t batch = x.dims[batchAxis], time = x.dims[timeAxis];
  IndexArray strides = denseStrides(x.dims);
  int64_t b = strides[batchAxis], t = strides[timeAxis], inner = strides[1];
  for (int64_t i = 0; i < batch; ++i) {
    int64_t length = loadIndex(args.inputs[1], i);
    if (length < 0 || length > time)
      return stepError(spec,
                       "sequence length " + std::to_string(length) + " is outside [0, " + std::to_string(time) + "]");
    StridedCopy reversed(i * b + (length - 1) * t, i * b), rest(i * b + length * t, i * b + length * t);
    reversed.add(length, -t, t);
    reversed.add(inner, 1, 1);
    rest.add(time - length, t, t);
    rest.add(inner, 1, 1);
    reversed.run(x, y);
    rest.run(x, y);
  }
  return Status::success();
}

} // namespace

std::span<const Entry> shapeEntries() {
  static constexpr Entry entries[] = {
      {"", "Reshape", 1, kNewest, runView},
      {"", "Flatten", 1, kNewest, runView},
      {"", "Squeeze", 1, kNewest, runView},
      {"", "Unsqueeze", 1, kNewest, runView},
      {"", "Transpose", 1, kNewest, runTranspose},
      {"", "Concat", 1, kNewest, runConcat},
      {"", "Split", 1, kNewest, runSplit, nullptr, nullptr, nullptr, unlessConstant},
      {"", "Slice", 1, kNewest, runSlice, nullptr, nullptr, nullptr, unlessConstant},
      {"", "Pad", 1, kNewest, runPad, nullptr, refusesPad, nullptr, unlessConstant},
      {"", "Expand", 8, kNewest, runExpand},
      {"", "Tile", 6, kNewest, runTile, nullptr, nullptr, nullptr, unlessConstant},
      {"", "Shape", 1, kNewest, runShape},
      {"", "Size", 1, kNewest, runSize},
      {"", "Range", 11, kNewest, runRange},
      {"", "Trilu", 14, kNewest, runTrilu, nullptr, nullptr, pairs<InPlace{0, 0}>},
      {"", "EyeLike", 9, kNewest, runEyeLike},
      {"", "DepthToSpace", 1, kNewest, runDepthSpace<false>},
      {"", "SpaceToDepth", 1, kNewest, runDepthSpace<true>},
      {"", "ReverseSequence", 10, kNewest, runReverseSequence, nullptr, nullptr, nullptr, always},
      {"recast", "slice_grad", 1, kNewest, runSliceGrad, nullptr, nullptr, nullptr, unlessConstant},
      {"recast", "pad_grad", 1, kNewest, runPadGrad, padGradWorkspaceBytes, refusesPad, nullptr, unlessConstant},
  };
  return entries;
}

} // namespace recast::reference
