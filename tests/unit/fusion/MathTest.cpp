// The stated errors of generated functions, against libm in f64.
#include "runtime/fusion/MathFunctions.h"
#include "tests/unit/fusion/FusionTest.h"
#include <bit>
#include <cmath>

namespace recast::fusion {
namespace {

struct Function {
  const char *name;
  Op op;
  double (*exact)(double);
  double maxUlp;
  double range = std::numeric_limits<double>::infinity(); ///< Arguments of which the bound holds.
};

void PrintTo(const Function &function, std::ostream *out) { *out << function.name; }

class MathTest : public testing::TestWithParam<Function> {};

/// Units in the last place of an f32 at `exact`.
double ulpAt(double exact) {
  int exponent = std::ilogb(std::max(std::fabs(exact), double(std::numeric_limits<float>::min())));
  return std::ldexp(1.0, exponent - 23);
}

TEST_P(MathTest, KeepsItsErrorBound) {
  const Function &function = GetParam();
  // A prime step: all exponents, and all places of the mantissa.
  constexpr uint64_t kStep = 409;
  std::vector<float> x, y;
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += kStep)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  // Where functions are used most, and where their pieces meet.
  for (double center : {0.0, 0.5, 0.55, 0.927734375, 1.0, 4.0, -1.0, 87.0, 88.7, -87.3, -103.9, 1.5707963})
    for (int i = -20000; i <= 20000; ++i)
      x.push_back(static_cast<float>(center + i * 1e-6));
  y.resize(x.size());
  CompiledRegion region(unaryRegion(function.op, static_cast<int64_t>(x.size())));
  region.run({x.data(), y.data()});
  double worst = 0;
  float worstAt = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double exact = function.exact(static_cast<double>(x[i]));
    auto rounded = static_cast<float>(exact);
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(y[i])) << function.name << "(" << x[i] << ") = " << y[i];
      continue;
    }
    if (std::isinf(rounded) || rounded == 0) {
      if (std::fabs(x[i]) <= function.range)
        ASSERT_TRUE(y[i] == rounded || std::fabs(y[i]) < std::numeric_limits<float>::min() ||
                    std::fabs(y[i]) > 0.999999f * std::numeric_limits<float>::max())
            << function.name << "(" << x[i] << ") = " << y[i] << " instead of " << rounded;
      continue;
    }
    if (std::fabs(x[i]) > function.range)
      continue;
    double error = std::fabs(static_cast<double>(y[i]) - exact) / ulpAt(exact);
    if (!(error <= worst)) {
      worst = error;
      worstAt = x[i];
    }
  }
  RecordProperty("ulp", std::to_string(worst));
  EXPECT_LE(worst, function.maxUlp) << function.name << " at " << worstAt;
  std::printf("%s: %.3f ulp at %g\n", function.name, worst, static_cast<double>(worstAt));
}

TEST_P(MathTest, KeepsSpecialValues) {
  const Function &function = GetParam();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0f, -0.0f, infinity, -infinity, std::nanf("")}, y(x.size());
  CompiledRegion region(unaryRegion(function.op, static_cast<int64_t>(x.size())));
  region.run({x.data(), y.data()});
  for (size_t i = 0; i < x.size(); ++i) {
    auto exact = static_cast<float>(function.exact(static_cast<double>(x[i])));
    if (std::isnan(exact))
      EXPECT_TRUE(std::isnan(y[i])) << function.name << "(" << x[i] << ") = " << y[i];
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(exact)) << function.name << "(" << x[i] << ")";
  }
}

constexpr double kWide = MathError::kTrigonometricRange;

INSTANTIATE_TEST_SUITE_P(All, MathTest,
                         testing::Values(Function{"exp", Op::Exp, std::exp, MathError::kExp},
                                         Function{"log", Op::Log, std::log, MathError::kLog},
                                         Function{"tanh", Op::Tanh, std::tanh, MathError::kTanh},
                                         Function{"erf", Op::Erf, std::erf, MathError::kErf},
                                         Function{"sin", Op::Sin, std::sin, MathError::kSin, kWide},
                                         Function{"cos", Op::Cos, std::cos, MathError::kCos, kWide},
                                         Function{"expm1", Op::Expm1, std::expm1, MathError::kExpm1},
                                         Function{"log1p", Op::Log1p, std::log1p, MathError::kLog1p},
                                         Function{"sqrt", Op::Sqrt, std::sqrt, 0.5}),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
} // namespace recast::fusion
