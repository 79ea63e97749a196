#include "runtime/reference/ProductContraction.h"
#include "runtime/reference/Reference.h"

namespace recast::reference {
namespace {

using Dims = std::span<const int64_t>;

// MatMul ------------------------------------------------------------------------------------------------------------

/// NumPy's matmul: a vector on the left is a row, on the right a column, and its index vanishes from y; leading
/// dimensions broadcast.
Contraction matMulContraction(Dims a, Dims b) {
  Contraction c;
  bool aVector = a.size() == 1, bVector = b.size() == 1;
  int64_t k = a.back(), n = bVector ? 1 : b.back(), m = aVector ? 1 : a[a.size() - 2];
  c.summed.push({.size = k, .a = 1, .b = n});
  c.columns.push({.size = n, .b = 1, .y = 1});
  c.rows.push({.size = m, .a = k, .y = n});
  Dims aBatch = aVector ? Dims() : a.first(a.size() - 2), bBatch = bVector ? Dims() : b.first(b.size() - 2);
  int64_t strideA = m * k, strideB = k * n, strideY = m * n;
  // A right operand without batch (weights) lets the batch join the rows: few large tiles instead of many small ones.
  AxisGroup &batch = elementCount(bBatch) == 1 ? c.rows : c.batch;
  for (size_t d = 1; d <= std::max(aBatch.size(), bBatch.size()); ++d) {
    int64_t sizeA = d <= aBatch.size() ? aBatch[aBatch.size() - d] : 1;
    int64_t sizeB = d <= bBatch.size() ? bBatch[bBatch.size() - d] : 1;
    int64_t size = sizeA == 1 ? sizeB : sizeA;
    batch.push({.size = size, .a = sizeA == 1 ? 0 : strideA, .b = sizeB == 1 ? 0 : strideB, .y = strideY});
    strideA *= sizeA, strideB *= sizeB, strideY *= size;
  }
  return c;
}

Status runMatMul(const StepSpec &spec, const KernelArgs &args) {
  Contraction c = matMulContraction(spec.inputs[0].dims, spec.inputs[1].dims);
  dispatchProduct(spec.outputs[0].dtype, [&]<typename T>() {
    contract<T>(c, args.inputs[0].as<T>(), args.inputs[1].as<T>(), nullptr, args.outputs[0].as<T>());
  });
  return Status::success();
}

std::string refuseProduct(const StepSpec &spec) {
  DType type = spec.outputs[0].dtype;
  if (!isProductType(type))
    return std::string(name(type)) + " is not supported";
  for (const TensorType &input : spec.inputs)
    if (input.present() && input.dtype != type)
      return "operands of different types";
  if (spec.inputs[0].dims.empty() || spec.inputs[1].dims.empty())
    return "a scalar operand";
  return "";
}

// Gemm --------------------------------------------------------------------------------------------------------------

Status runGemm(const StepSpec &spec, const KernelArgs &args) {
  bool transA = spec.attrs.getInt("transA", 0) != 0, transB = spec.attrs.getInt("transB", 0) != 0;
  Dims a = spec.inputs[0].dims, b = spec.inputs[1].dims;
  int64_t m = transA ? a[1] : a[0], k = transA ? a[0] : a[1], n = transB ? b[0] : b[1];
  Contraction c;
  c.alpha = spec.attrs.getFloat("alpha", 1);
  c.beta = spec.attrs.getFloat("beta", 1);
  bool hasAddend = present(args.inputs, 2) && c.beta != 0;
  Dims addend = hasAddend ? Dims(spec.inputs[2].dims) : Dims();
  int64_t addendColumns = addend.empty() ? 1 : addend.back(), addendRows = addend.size() < 2 ? 1 : addend[0];
  c.summed.push({.size = k, .a = transA ? m : 1, .b = transB ? 1 : n});
  c.rows.push({.size = m, .a = transA ? 1 : k, .y = n, .addend = addendRows == 1 ? 0 : addendColumns});
  c.columns.push({.size = n, .b = transB ? k : 1, .y = 1, .addend = addendColumns == 1 ? 0 : 1});
  dispatchProduct(spec.outputs[0].dtype, [&]<typename T>() {
    const T *added = hasAddend ? args.inputs[2].as<T>() : nullptr;
    contract<T>(c, args.inputs[0].as<T>(), args.inputs[1].as<T>(), added, args.outputs[0].as<T>());
  });
  return Status::success();
}

// MatMulInteger -----------------------------------------------------------------------------------------------------

/// A zero point that is a scalar, or one value a row (of a) or column (of b).
int64_t zeroPoint(const KernelArgs &args, size_t input, int64_t i) {
  if (!present(args.inputs, input))
    return 0;
  return loadIndex(args.inputs[input], args.inputs[input].elems() == 1 ? 0 : i);
}

template <typename A, typename B>
void multiplyIntegers(const StepSpec &spec, const KernelArgs &args, int64_t m, int64_t n, int64_t k) {
  const A *a = args.inputs[0].as<A>();
  const B *b = args.inputs[1].as<B>();
  int32_t *y = args.outputs[0].as<int32_t>();
  Dims bDims = spec.inputs[1].dims;
  int64_t rows = m == 0 || n == 0 ? 0 : args.outputs[0].elems() / n;
  bool sharedB = bDims.size() <= 2;
  parallelFor(rows, grainFor(n * k), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t j = 0; j < n; ++j) {
        const B *column = b + (sharedB ? 0 : row / m * k * n) + j;
        int64_t zeroA = zeroPoint(args, 2, row % m), zeroB = zeroPoint(args, 3, j), sum = 0;
        for (int64_t p = 0; p < k; ++p)
          sum += (a[row * k + p] - zeroA) * (column[p * n] - zeroB);
        y[row * n + j] = static_cast<int32_t>(sum);
      }
  });
}

Status runMatMulInteger(const StepSpec &spec, const KernelArgs &args) {
  Dims a = spec.inputs[0].dims, b = spec.inputs[1].dims;
  int64_t m = a[a.size() - 2], k = a.back(), n = b.back();
  auto withA = [&]<typename A>() {
    if (spec.inputs[1].dtype == DType::I8)
      multiplyIntegers<A, int8_t>(spec, args, m, n, k);
    else
      multiplyIntegers<A, uint8_t>(spec, args, m, n, k);
  };
  if (spec.inputs[0].dtype == DType::I8)
    withA.operator()<int8_t>();
  else
    withA.operator()<uint8_t>();
  return Status::success();
}

std::string refuseMatMulInteger(const StepSpec &spec) {
  Dims a = spec.inputs[0].dims, b = spec.inputs[1].dims;
  if (a.size() < 2 || b.size() < 2)
    return "a vector operand";
  if (b.size() > 2 && !std::equal(a.begin(), a.end() - 2, b.begin(), b.end() - 2))
    return "batch dimensions that broadcast";
  for (size_t i = 2; i < spec.inputs.size(); ++i)
    if (spec.inputs[i].present() && spec.inputs[i].rank() > 1)
      return "zero points of more than one dimension";
  return "";
}

constexpr Entry kEntries[] = {
    {"", "MatMul", 1, kNewest, runMatMul, nullptr, refuseProduct},
    // Before version 7 C broadcast as a suffix only where `broadcast` was set: NumPy's rule covers it.
    {"", "Gemm", 1, kNewest, runGemm, nullptr, refuseProduct},
    {"", "Einsum", 12, kNewest, runEinsum, nullptr, refuseEinsum},
    {"", "MatMulInteger", 10, kNewest, runMatMulInteger, nullptr, refuseMatMulInteger},
};

} // namespace

std::span<const Entry> productEntries() { return kEntries; }

} // namespace recast::reference
