#include "passes/precision/Policy.h"
#include "mlir/IR/Builders.h"
#include "passes/precision/Constants.h"
#include <gtest/gtest.h>

namespace recast::precision {
namespace {

struct Types {
  mlir::MLIRContext context;
  mlir::Type f16 = mlir::Float16Type::get(&context), bf16 = mlir::BFloat16Type::get(&context);
};

TEST(Constants, LossInTheLowType) {
  Types t;
  // The largest f16 is 65,504; 65,520 and more round to infinity. The smallest normal f16 is 2^-14.
  EXPECT_EQ(lossOf(65519, t.f16), Loss::None);
  EXPECT_EQ(lossOf(65520, t.f16), Loss::Overflows);
  EXPECT_EQ(lossOf(-65520, t.f16), Loss::Overflows);
  EXPECT_EQ(lossOf(65520, t.bf16), Loss::None);
  EXPECT_EQ(lossOf(std::numeric_limits<float>::lowest(), t.bf16), Loss::Overflows);
  EXPECT_EQ(lossOf(0x1p-14, t.f16), Loss::None);
  EXPECT_EQ(lossOf(0x1.004p-15, t.f16), Loss::Vanishes);
  EXPECT_EQ(lossOf(0x1p-15, t.f16), Loss::None); // exact, though subnormal
  EXPECT_EQ(lossOf(1e-12, t.f16), Loss::Vanishes);
  EXPECT_EQ(lossOf(1e-12, t.bf16), Loss::None);
  EXPECT_EQ(lossOf(1 - 0x1p-24, t.f16), Loss::Collapses);
  EXPECT_EQ(lossOf(-1 - 0x1p-20, t.bf16), Loss::Collapses);
  EXPECT_EQ(lossOf(0.3, t.f16), Loss::None);
  for (double exact : {0.0, -0.0, 1.0, std::numeric_limits<double>::infinity()})
    EXPECT_EQ(lossOf(exact, t.f16), Loss::None);
}

TEST(Constants, OneNumberOfATensorOverflows) {
  Types t;
  auto constant = [&](std::vector<float> numbers) {
    auto type = mlir::RankedTensorType::get({static_cast<int64_t>(numbers.size())}, mlir::Float32Type::get(&t.context));
    return onnx_ir::makeTensor(type, {reinterpret_cast<const char *>(numbers.data()), numbers.size() * sizeof(float)});
  };
  t.context.loadDialect<onnx_ir::ONNXDialect>();
  auto clipped = *onnx_ir::asDoubles(saturated(constant({-1e9f, 1, std::numeric_limits<float>::infinity()}), t.f16));
  EXPECT_EQ(clipped[0], -65504);
  EXPECT_EQ(clipped[1], 1);
  EXPECT_TRUE(std::isinf(clipped[2]));
}

TEST(Policy, RangesFitUpToRoundingToInfinity) {
  Types t;
  EXPECT_TRUE((ValueRange{-65504, 65519}.fits(t.f16)));
  EXPECT_FALSE((ValueRange{0, 65520}.fits(t.f16)));
  EXPECT_TRUE((ValueRange{0, 1e38}.fits(t.bf16)));
  EXPECT_FALSE((ValueRange{-1e39, 0}.fits(t.bf16)));
}

TEST(Policy, BothListsAreReadAndNothingElseIsBuiltIn) {
  for (const char *low : {"bf16", "f16", "tf32"})
    for (const char *choice : {"", "cuda", "cpu"})
      EXPECT_TRUE(static_cast<bool>(Policy::load(low, choice))) << low << " " << choice;
  for (auto [low, choice] : {std::pair("f8", ""), std::pair("f16", "/no/such/file.yaml")}) {
    auto policy = Policy::load(low, choice);
    ASSERT_FALSE(static_cast<bool>(policy));
    EXPECT_FALSE(llvm::toString(policy.takeError()).empty());
  }
}

} // namespace
} // namespace recast::precision
