// Gradient kernels against central differences of the forward kernel, in f64.
#pragma once
#include "tests/unit/reference/ReferenceTest.h"

namespace recast::reference::test {

/// With a step of 1e-5 the truncation error of a central difference is about 1e-10, its rounding error 1e-11 times the
/// size of the sum: 1e-6 leaves room for steep functions, and no wrong formula passes it.
inline constexpr double kDifferenceTolerance = 1e-6;

/// Values in [-1.25, 1.25] in steps of 0.25 that repeat after 11 elements; literals of the tests are made from them.
inline Array pattern(DType dtype, std::vector<int64_t> dims, int64_t seed = 0) {
  Array array(dtype, std::move(dims));
  for (int64_t i = 0; i < array.type.elems(); ++i)
    array.set(static_cast<size_t>(i), static_cast<double>((i * 7 + seed) % 11) * 0.25 - 1.25);
  return array;
}
inline Array pattern(std::vector<int64_t> dims, int64_t seed = 0) { return pattern(DType::F64, std::move(dims), seed); }

/// Checks `gradient` = d(sum(forward(inputs)[0] * dy)) / d(inputs[which]) element by element.
inline void expectGradient(const Op &forward, std::vector<Array> inputs, size_t which,
                           const std::vector<TensorType> &outputs, const Array &dy, const Array &gradient) {
  constexpr double step = 1e-5;
  ASSERT_EQ(gradient.type.dims, inputs[which].type.dims);
  auto loss = [&] {
    Array y = run(forward, inputs, outputs)[0];
    double sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(y.type.elems()); ++i)
      sum += y.get(i) * dy.get(i);
    return sum;
  };
  for (size_t i = 0; i < static_cast<size_t>(gradient.type.elems()); ++i) {
    double value = inputs[which].get(i);
    inputs[which].set(i, value + step);
    double above = loss();
    inputs[which].set(i, value - step);
    double below = loss();
    inputs[which].set(i, value);
    double want = (above - below) / (2 * step);
    ASSERT_NEAR(gradient.get(i), want, kDifferenceTolerance * std::max(1.0, std::fabs(want)))
        << forward.name << ", input " << which << ", element " << i;
  }
}

} // namespace recast::reference::test
