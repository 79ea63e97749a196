#include "ir/onnx/IntendedValue.h"
#include "ir/onnx/RotaryTable.h"
#include <gtest/gtest.h>

namespace recast::onnx_ir {
namespace {

TEST(IntendedValue, GivesBackWhatFrameworksComputeWith) {
  for (double number : {0.1,
                        0.2,
                        0.01,
                        1e-5,
                        1e-12,
                        0.044715,
                        0.9,
                        1.0 / 6,
                        1.0 / 3,
                        std::sqrt(2.0),
                        std::sqrt(0.5),
                        std::sqrt(2 / std::numbers::pi),
                        1 / std::sqrt(8.0),
                        1 / std::sqrt(48.0),
                        std::pow(8.0, -0.25),
                        -0.1,
                        0.0,
                        1.0,
                        3.0,
                        1.6732632423543772,
                        1.0507009873554805,
                        std::numbers::pi,
                        std::log(10.0),
                        std::numbers::log2e,
                        std::log(2 * std::numbers::pi)})
    EXPECT_DOUBLE_EQ(intendedValue(static_cast<float>(number)), number) << number;
}

TEST(IntendedValue, AlwaysRoundsToTheFloatAgain) {
  uint32_t state = 7;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    float value = (static_cast<float>(state >> 8) / (1 << 24) - 0.5f) * 4;
    EXPECT_EQ(static_cast<float>(intendedValue(value)), value);
  }
}

TEST(IntendedValue, LeavesExtremesAlone) {
  EXPECT_EQ(intendedValue(-FLT_MAX), -static_cast<double>(FLT_MAX));
  EXPECT_TRUE(std::isinf(intendedValue(INFINITY)));
  EXPECT_TRUE(std::isnan(intendedValue(NAN)));
}

TEST(RotaryTable, WidensTablesAndNothingElse) {
  llvm::SmallVector<double> table;
  for (int position = 0; position < 8; ++position)
    for (int column = 0; column < 4; ++column) {
      float frequency = 1.0f / std::pow(10000.0f, static_cast<float>(2 * (column % 2)) / 4.0f);
      table.push_back(static_cast<float>(std::sin(static_cast<float>(position * static_cast<double>(frequency)))));
    }
  auto wide = widenRotaryTable(table, 8, 4);
  ASSERT_TRUE(wide.has_value());
  EXPECT_DOUBLE_EQ((*wide)[4 * 3], std::sin(3.0));
  EXPECT_DOUBLE_EQ((*wide)[4 * 3 + 1], std::sin(3.0 * static_cast<double>(0.01f)));
  table[5] += 1e-6;
  EXPECT_FALSE(widenRotaryTable(table, 8, 4).has_value());
}

} // namespace
} // namespace recast::onnx_ir
