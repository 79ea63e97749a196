// Gather and its relatives. Indices are checked before anything is read through them.
#include "runtime/reference/IndexingKernels.h"
#include <cstring>

namespace recast::reference {
namespace {

/// `axis` of `rank` dims, from the front; 0 for what the schema's own checks rule out.
int64_t axisOf(const StepSpec &spec, int64_t rank, int64_t fallback) {
  return std::max<int64_t>(0, normalizeAxis(spec.attrs.getInt("axis", fallback), rank));
}

Status runGather(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  int64_t axis = axisOf(spec, x.rank(), 0), size = x.dims[axis];
  if (Status status = checkIndices(spec, indices, size); !status.ok())
    return status;
  int64_t outer = product(x.dims, 0, axis), inner = product(x.dims, axis + 1, x.rank()), count = indices.elems();
  size_t bytes = static_cast<size_t>(inner) * byteSize(x.dtype);
  parallelFor(outer * count, grainFor(inner), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t row = i / count * size + fromFront(loadIndex(indices, i % count), size);
      std::memcpy(y.as<char>() + static_cast<size_t>(i) * bytes, x.as<char>() + static_cast<size_t>(row) * bytes,
                  bytes);
    }
  });
  return Status::success();
}

Status runGatherElements(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  int64_t axis = axisOf(spec, x.rank(), 0), size = x.dims[axis];
  if (Status status = checkIndices(spec, indices, size); !status.ok())
    return status;
  IndexArray strides = denseStrides(x.dims);
  int64_t along = strides[axis];
  strides[axis] = 0;
  StridedLoop<2> loop(y.dims);
  loop.setStrides(0, strides);
  loop.broadcast(1, y.dims);
  loop.coalesce();
  dispatchAny(y.dtype, [&]<typename T>() {
    parallelFor(loop.count(), kGrain, [&](int64_t begin, int64_t end) {
      loop.walk(begin, end, [&](const std::array<int64_t, 2> &at, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          int64_t index = fromFront(loadIndex(indices, at[1] + i), size);
          y.as<T>()[at[1] + i] = x.as<T>()[at[0] + i * loop.inner(0) + index * along];
        }
      });
    });
  });
  return Status::success();
}

Status runGatherND(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &indices = args.inputs[1], &y = args.outputs[0];
  int64_t batchDims = spec.attrs.getInt("batch_dims", 0), width = indices.dims[indices.rank() - 1];
  if (batchDims < 0 || batchDims + width > x.rank() || batchDims >= indices.rank())
    return stepError(spec, "tuples of " + std::to_string(width) + " indices after " + std::to_string(batchDims) +
                               " batch dimensions do not fit the rank " + std::to_string(x.rank()));
  IndexArray strides = denseStrides(x.dims);
  std::span<const int64_t> indexed = x.dims.subspan(batchDims, width);
  int64_t batches = product(x.dims, 0, batchDims), batchElems = product(x.dims, batchDims, x.rank());
  int64_t slice = product(x.dims, batchDims + width, x.rank());
  int64_t tuples = product(indices.dims, 0, indices.rank() - 1), perBatch = batches ? tuples / batches : 0;
  int64_t offset = 0;
  for (int64_t i = 0; i < tuples; ++i)
    if (Status status = tupleOffset(spec, indices, i, indexed, &strides[batchDims], offset); !status.ok())
      return status;
  size_t element = byteSize(x.dtype), bytes = static_cast<size_t>(slice) * element;
  parallelFor(tuples, grainFor(slice + width), [&](int64_t begin, int64_t end) {
    int64_t at = 0;
    for (int64_t i = begin; i < end; ++i) {
      (void)tupleOffset(spec, indices, i, indexed, &strides[batchDims], at); // Checked above.
      at += i / perBatch * batchElems;
      std::memcpy(y.as<char>() + static_cast<size_t>(i) * bytes, x.as<char>() + static_cast<size_t>(at) * element,
                  bytes);
    }
  });
  return Status::success();
}

/// Indices outside [-depth, depth) give a row of off values.
Status runOneHot(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &indices = args.inputs[0], &values = args.inputs[2], &y = args.outputs[0];
  int64_t axis = axisOf(spec, y.rank(), -1), depth = y.dims[axis], inner = product(y.dims, axis + 1, y.rank());
  // The plan's output has the depth of compile time.
  int64_t given = static_cast<int64_t>(loadDouble(args.inputs[1], 0));
  if (given != depth)
    return stepError(spec, "depth " + std::to_string(given) + " where the plan has " + std::to_string(depth));
  bool integers = !isFloat(indices.dtype);
  dispatchAny(y.dtype, [&]<typename T>() {
    T off = values.as<T>()[0], on = values.as<T>()[1];
    parallelFor(indices.elems(), grainFor(depth), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T *row = y.as<T>() + i / std::max<int64_t>(inner, 1) * depth * inner + i % std::max<int64_t>(inner, 1);
        for (int64_t k = 0; k < depth; ++k)
          row[k * inner] = off;
        double value = integers ? 0 : loadDouble(indices, i);
        if (!integers && !(std::fabs(value) <= static_cast<double>(depth)))
          continue;
        int64_t index = integers ? loadIndex(indices, i) : static_cast<int64_t>(value);
        if (index >= -depth && index < depth)
          row[fromFront(index, depth) * inner] = on;
      }
    });
  });
  return Status::success();
}

// The gradient of Gather sums the rows of dy that were read from one row of x. The positions that read each row are
// listed first, by a counting sort: first[row] .. first[row + 1] of `position`, in increasing order.

size_t gatherGradWorkspaceBytes(const StepSpec &spec) {
  const TensorType &dx = spec.outputs[0];
  int64_t rows = dx.dims.empty() ? 1 : dx.dims[axisOf(spec, dx.rank(), 0)];
  return static_cast<size_t>(rows + 1 + spec.inputs[1].elems()) * sizeof(int64_t);
}

Status runGatherGrad(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &dy = args.inputs[0], &indices = args.inputs[1], &dx = args.outputs[0];
  int64_t axis = axisOf(spec, dx.rank(), 0), size = dx.dims[axis], count = indices.elems();
  if (Status status = checkIndices(spec, indices, size); !status.ok())
    return status;
  int64_t outer = product(dx.dims, 0, axis), inner = product(dx.dims, axis + 1, dx.rank());
  int64_t *first = reinterpret_cast<int64_t *>(args.workspace.data()), *position = first + size + 1;
  std::fill(first, first + size + 1, 0);
  for (int64_t i = 0; i < count; ++i)
    ++first[fromFront(loadIndex(indices, i), size)];
  for (int64_t row = 0, sum = 0; row <= size; ++row) {
    sum += row < size ? first[row] : 0;
    first[row] = sum;
  }
  for (int64_t i = count; i-- > 0;)
    position[--first[fromFront(loadIndex(indices, i), size)]] = i;

  constexpr int64_t kColumns = 256;
  dispatchFloat(dx.dtype, [&]<typename T>() {
    parallelFor(outer * size, grainFor(inner * (1 + count / std::max<int64_t>(size, 1))),
                [&](int64_t begin, int64_t end) {
                  double sums[kColumns];
                  for (int64_t i = begin; i < end; ++i) {
                    int64_t block = i / size, row = i % size;
                    for (int64_t column = 0; column < inner; column += kColumns) {
                      int64_t columns = std::min(kColumns, inner - column);
                      std::fill(sums, sums + columns, 0.0);
                      for (int64_t k = first[row]; k < first[row + 1]; ++k) {
                        const T *from = dy.as<T>() + (block * count + position[k]) * inner + column;
                        for (int64_t j = 0; j < columns; ++j)
                          sums[j] += load(from[j]);
                      }
                      for (int64_t j = 0; j < columns; ++j)
                        dx.as<T>()[i * inner + column + j] = roundTo<T>(sums[j]);
                    }
                  }
                });
  });
  return Status::success();
}

} // namespace

std::span<const Entry> indexingEntries() {
  static constexpr Entry entries[] = {
      {"", "Gather", 1, kNewest, runGather, nullptr, nullptr, nullptr, always},
      {"", "GatherElements", 11, kNewest, runGatherElements, nullptr, nullptr, nullptr, always},
      {"", "GatherND", 11, kNewest, runGatherND, nullptr, nullptr, nullptr, always},
      {"", "Scatter", 9, kNewest, runScatterElements, scatterWorkspaceBytes, refusesScatter, pairs<InPlace{0, 0}>,
       always},
      {"", "ScatterElements", 11, kNewest, runScatterElements, scatterWorkspaceBytes, refusesScatter,
       pairs<InPlace{0, 0}>, always},
      {"", "ScatterND", 11, kNewest, runScatterND, scatterWorkspaceBytes, refusesScatter, pairs<InPlace{0, 0}>, always},
      {"", "OneHot", 9, kNewest, runOneHot, nullptr, nullptr, nullptr, unlessConstant},
      {"recast", "gather_grad", 1, kNewest, runGatherGrad, gatherGradWorkspaceBytes, nullptr, nullptr, always},
  };
  return entries;
}

} // namespace recast::reference
