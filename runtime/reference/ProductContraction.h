// The one engine of MatMul, Gemm and Einsum: y = alpha * sum_k a * b + beta * addend over strided operands.
#pragma once
#include "runtime/reference/Loops.h"

namespace recast::reference {

/// One index of a contraction: its size, and its stride in each tensor, in elements (0 where the tensor repeats).
struct ContractionAxis {
  int64_t size = 1, a = 0, b = 0, y = 0, addend = 0;
};

/// Indices that are walked as one, in row-major order; the innermost index is pushed first.
class AxisGroup {
public:
  /// Two operands of the highest rank bring at most this many different indices.
  static constexpr int kMaxAxes = 2 * kMaxRank;

  void push(const ContractionAxis &axis) {
    total *= axis.size;
    if (axis.size != 1)
      axes[used++] = axis;
  }
  int64_t elems() const { return total; }
  /// out[i] = offset of point begin + i in the tensor that `stride` names.
  void offsets(int64_t begin, int64_t count, int64_t ContractionAxis::*stride, int64_t *out) const;

private:
  std::array<ContractionAxis, kMaxAxes> axes;
  int used = 0;
  int64_t total = 1;
};

/// `batch` indices are in a, b and y; `rows` not in b; `columns` not in a; `summed` not in y.
struct Contraction {
  AxisGroup batch, rows, columns, summed;
  double alpha = 1, beta = 1;
};

/// Runs the contraction; `addend` may be null. Floats accumulate in double and are rounded once; integers wrap modulo
/// 2^n. The order of every sum is fixed, whatever the number of threads.
/// Instantiated for float, double, Half, BFloat16, int32_t, int64_t, uint32_t, uint64_t.
template <typename T> void contract(const Contraction &c, const T *a, const T *b, const T *addend, T *y);

/// True if contract() takes the type.
constexpr bool isProductType(DType type) {
  return isFloat(type) || type == DType::I32 || type == DType::I64 || type == DType::U32 || type == DType::U64;
}

// Einsum: ProductEinsum.cpp.
Status runEinsum(const StepSpec &spec, const KernelArgs &args);
std::string refuseEinsum(const StepSpec &spec);

} // namespace recast::reference
