// ScatterElements and ScatterND: updates are applied in the order of the indices, so that results are reproducible.
#include "runtime/reference/IndexingKernels.h"
#include <cstring>

namespace recast::reference {
namespace {

enum class Combine { None, Add, Mul, Max, Min };

Combine combineOf(const StepSpec &spec) {
  std::string_view reduction = spec.attrs.stringView("reduction", "none");
  return reduction == "add"   ? Combine::Add
         : reduction == "mul" ? Combine::Mul
         : reduction == "max" ? Combine::Max
         : reduction == "min" ? Combine::Min
                              : Combine::None;
}

/// Sums and products of floats are kept in double until all updates are in.
bool accumulatesInWorkspace(const StepSpec &spec) {
  Combine combine = combineOf(spec);
  return isFloat(spec.outputs[0].dtype) && (combine == Combine::Add || combine == Combine::Mul);
}

template <Combine combine, typename A, typename T> A combined(A old, T update) {
  if constexpr (combine == Combine::None) {
    return update;
  } else if constexpr (combine == Combine::Add || combine == Combine::Mul) {
    auto value = load(update);
    if constexpr (std::is_integral_v<T>) {
      // Unsigned arithmetic: overflow wraps.
      uint64_t a = static_cast<uint64_t>(old), b = static_cast<uint64_t>(value);
      return static_cast<A>(combine == Combine::Add ? a + b : a * b);
    } else {
      return combine == Combine::Add ? old + value : old * value;
    }
  } else {
    auto a = load(old), b = load(update);
    if constexpr (isFloatType<T>) {
      // As numpy.maximum and numpy.minimum: a NaN on either side stays.
      if (std::isnan(a) || std::isnan(b))
        return std::isnan(a) ? old : update;
    }
    return (combine == Combine::Max ? b > a : b < a) ? update : old;
  }
}

/// Copies data to the output, lets `apply(combineTag, target, updates)` put the updates in, and rounds sums.
template <typename Apply> void scatter(const StepSpec &spec, const KernelArgs &args, Apply &&apply) {
  const TensorRef &data = args.inputs[0], &updates = args.inputs[2], &y = args.outputs[0];
  auto withCombine = [&](auto *target, const auto *from) {
    switch (combineOf(spec)) {
    case Combine::None:
      return apply.template operator()<Combine::None>(target, from);
    case Combine::Add:
      return apply.template operator()<Combine::Add>(target, from);
    case Combine::Mul:
      return apply.template operator()<Combine::Mul>(target, from);
    case Combine::Max:
      return apply.template operator()<Combine::Max>(target, from);
    case Combine::Min:
      return apply.template operator()<Combine::Min>(target, from);
    }
  };
  dispatchAny(y.dtype, [&]<typename T>() {
    if constexpr (isFloatType<T>) {
      if (accumulatesInWorkspace(spec)) {
        double *sums = reinterpret_cast<double *>(args.workspace.data());
        int64_t count = y.elems();
        for (int64_t i = 0; i < count; ++i)
          sums[i] = load(data.as<T>()[i]);
        if (combineOf(spec) == Combine::Add)
          apply.template operator()<Combine::Add>(sums, updates.as<T>());
        else
          apply.template operator()<Combine::Mul>(sums, updates.as<T>());
        for (int64_t i = 0; i < count; ++i)
          y.as<T>()[i] = roundTo<T>(sums[i]);
        return;
      }
    }
    if (y.data != data.data)
      std::memcpy(y.data, data.data, y.bytes());
    withCombine(y.as<T>(), static_cast<const T *>(updates.as<T>()));
  });
}

} // namespace

size_t scatterWorkspaceBytes(const StepSpec &spec) {
  return accumulatesInWorkspace(spec) ? static_cast<size_t>(spec.outputs[0].elems()) * sizeof(double) : 0;
}

std::string refusesScatter(const StepSpec &spec) {
  std::string_view reduction = spec.attrs.stringView("reduction", "none");
  if (reduction != "none" && combineOf(spec) == Combine::None)
    return "reduction " + std::string(reduction) + " is not supported";
  if (reduction != "none" && spec.outputs[0].dtype == DType::Bool)
    return "bool tensors have no reduction";
  return "";
}

Status runScatterElements(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &data = args.inputs[0], &indices = args.inputs[1];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), data.rank());
  if (axis < 0)
    return stepError(spec, "axis is outside the rank " + std::to_string(data.rank()));
  int64_t size = data.dims[axis];
  if (Status status = checkIndices(spec, indices, size); !status.ok())
    return status;
  for (int64_t d = 0; d < data.rank(); ++d)
    if (d != axis && indices.dims[d] > data.dims[d])
      return stepError(spec, "indices have " + std::to_string(indices.dims[d]) + " elements along axis " +
                                 std::to_string(d) + ", the data " + std::to_string(data.dims[d]));
  IndexArray strides = denseStrides(data.dims);
  int64_t along = strides[axis];
  strides[axis] = 0;
  StridedLoop<2> loop(indices.dims);
  loop.setStrides(0, strides);
  loop.broadcast(1, indices.dims);
  loop.coalesce();
  scatter(spec, args, [&]<Combine combine>(auto *target, const auto *updates) {
    if (loop.count() == 0)
      return;
    loop.walk(0, loop.count(), [&](const std::array<int64_t, 2> &at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        int64_t index = fromFront(loadIndex(indices, at[1] + i), size);
        auto &element = target[at[0] + i * loop.inner(0) + index * along];
        element = combined<combine>(element, updates[at[1] + i]);
      }
    });
  });
  return Status::success();
}

Status runScatterND(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &data = args.inputs[0], &indices = args.inputs[1];
  int64_t width = indices.dims[indices.rank() - 1];
  if (width > data.rank())
    return stepError(spec, "tuples of " + std::to_string(width) + " indices do not fit the rank " +
                               std::to_string(data.rank()));
  IndexArray strides = denseStrides(data.dims);
  std::span<const int64_t> indexed = data.dims.subspan(0, width);
  int64_t tuples = product(indices.dims, 0, indices.rank() - 1), slice = product(data.dims, width, data.rank());
  int64_t offset = 0;
  for (int64_t i = 0; i < tuples; ++i)
    if (Status status = tupleOffset(spec, indices, i, indexed, strides.data(), offset); !status.ok())
      return status;
  scatter(spec, args, [&]<Combine combine>(auto *target, const auto *updates) {
    int64_t at = 0;
    for (int64_t i = 0; i < tuples; ++i) {
      (void)tupleOffset(spec, indices, i, indexed, strides.data(), at); // Checked above.
      for (int64_t j = 0; j < slice; ++j)
        target[at + j] = combined<combine>(target[at + j], updates[i * slice + j]);
    }
  });
  return Status::success();
}

} // namespace recast::reference
