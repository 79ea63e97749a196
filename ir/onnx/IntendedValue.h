// The number that a float in a model was before the file rounded it. Links nothing.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>

namespace recast::onnx_ir {

/// Frameworks compute with doubles such as 0.1, 1/6, sqrt(2) or sqrt(2/pi); ONNX's float attributes and the scalar
/// constants of f32 graphs keep their nearest float. In f64, the oracle mode, that rounding (6e-8) would be the largest
/// error of all. This gives the number back where exactly that float is the rounding of
///   a decimal of up to 6 significant digits, p/q, sqrt(p/q), (1/q)^(1/4), or sqrt(p/(q pi)) with small p and q,
///   or a constant that formulas name (pi, logarithms of 2, 10 and 2 pi, the two numbers of SELU),
/// and the float itself otherwise. The result rounds to `value` again, so nothing computed in f32 changes.
inline double intendedValue(float value) {
  if (!std::isfinite(value) || value == 0 || std::fabs(value) == FLT_MAX)
    return value;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", static_cast<double>(value));
  if (double decimal = std::strtod(text, nullptr); static_cast<float>(decimal) == value)
    return decimal;
  double magnitude = std::fabs(static_cast<double>(value)), found = 0;
  auto consider = [&](double candidate) {
    if (found == 0 && static_cast<float>(candidate) == static_cast<float>(magnitude))
      found = candidate;
  };
  using namespace std::numbers;
  // SELU's are alpha and scale of Klambauer 2017, appendix A.1; the others are those of log2, log10 and of Gaussians.
  constexpr double kNamed[] = {1.6732632423543772,
                               1.0507009873554805,
                               1.7580993408473766,
                               pi,
                               pi / 2,
                               2 * pi,
                               e,
                               ln2,
                               ln10,
                               log2e,
                               log10e,
                               inv_pi};
  for (double named : kNamed)
    consider(named);
  for (double gaussian : {std::log(2 * pi), std::log(2 * pi) / 2})
    consider(gaussian);
  // For each denominator only the nearest numerator can fit.
  auto nearest = [&](double scaled, double limit, auto &&form) {
    if (double p = std::round(scaled); p >= 1 && p <= limit)
      consider(form(p));
  };
  double square = magnitude * magnitude;
  for (double q = 1; q <= 64; ++q)
    nearest(magnitude * q, 64, [&](double p) { return p / q; });
  for (double q = 1; q <= 1024; ++q)
    nearest(square * q, 16, [&](double p) { return std::sqrt(p / q); });
  for (double q = 1; q <= 8; ++q)
    nearest(square * q * std::numbers::pi, 8, [&](double p) { return std::sqrt(p / (q * std::numbers::pi)); });
  for (double q = 1; q <= 1024; ++q)
    nearest(square * square * q, 1, [&](double) { return 1 / std::sqrt(std::sqrt(q)); });
  return found == 0 ? value : std::copysign(found, value);
}

} // namespace recast::onnx_ir
