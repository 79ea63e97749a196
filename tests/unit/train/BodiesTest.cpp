// Every operator of dialect train: its native kernel and its body in standard operators give the same results.
#include "ir/train/Dialect.h"
#include "mlir/IR/MLIRContext.h"
#include "tests/unit/train/TrainOp.h"
#include <set>

namespace recast::train::test {
namespace {

/// Opsets whose forms of the standard operators differ: axes as attributes or inputs, scatters that add, bitwise
/// operators.
constexpr int64_t kOpsets[] = {8, 12, 13, 18, 21};

std::vector<Case> allCases() {
  std::vector<Case> all;
  for (const std::vector<Case> &part : {gradientCases(), stepCases(), optimizerCases(), precisionCases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Relative to the result's norm. Bodies compute in f32 where kernels sum in f64, over at most some hundred terms (each
/// rounding is 2^-24); both round once to a 16-bit type, to neighbours at worst: 2^-10 for f16 and 2^-7 for bf16.
double toleranceOf(DType type) {
  switch (type) {
  case DType::F64:
    return 1e-13;
  case DType::F32:
    return 4e-6;
  case DType::F16:
    return 0x1p-10;
  case DType::BF16:
    return 0x1p-7;
  default:
    return 0;
  }
}

/// Infinities and NaN stand in the same places, and the rest is close. State that a step keeps is equal to the bit, and
/// so is everything that is no float.
void expectClose(const Array &native, const Array &body) {
  ASSERT_EQ(toString(native.type), toString(body.type));
  double error = 0, size = 0;
  for (size_t i = 0; i < static_cast<size_t>(native.type.elems()); ++i) {
    double a = native.get(i), b = body.get(i);
    if (std::isfinite(a) && std::isfinite(b)) {
      error += (a - b) * (a - b);
      size += a * a;
    } else {
      ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << "element " << i << ": " << a << " and " << b;
    }
  }
  EXPECT_LE(std::sqrt(error), toleranceOf(native.type.dtype) * std::sqrt(size));
}

/// A flag that makes the step skip.
bool isSkipped(const Case &c, const std::vector<Array> &operands) {
  return !c.operands.empty() && c.operands.front().dtype == DType::Bool && c.op != "update_loss_scale" &&
         operands.front().get(0) != 0;
}

std::vector<std::string> allOps() {
  std::set<std::string> names;
  for (const Case &c : allCases())
    names.insert(c.op);
  return {names.begin(), names.end()};
}

void expectAgreement(const Case &c, DType type) {
  std::vector<Array> operands = makeOperands(c, type, /*seed=*/1);
  std::vector<Array> native = runNative(c, operands, kOpsets[std::size(kOpsets) - 1]);
  ASSERT_EQ(native.size(), c.results);
  for (int64_t opset : kOpsets) {
    // ONNX's operators take bf16 from opset 13 on; f16 differs from f32 by casts only.
    bool isNarrow = type == DType::BF16 || type == DType::F16;
    if (opset < c.sinceOpset || (isNarrow && opset < 13))
      continue;
    SCOPED_TRACE("at opset " + std::to_string(opset));
    std::vector<Array> body = runBody(c, operands, opset);
    ASSERT_EQ(body.size(), c.results);
    for (unsigned i = 0; i < c.results; ++i) {
      SCOPED_TRACE("result " + std::to_string(i));
      expectClose(native[i], body[i]);
      if (isSkipped(c, operands))
        EXPECT_EQ(native[i].bytes, body[i].bytes) << "of a skipped step";
    }
  }
}

class Bodies : public testing::TestWithParam<std::string> {};

TEST_P(Bodies, AgreeWithKernels) {
  size_t index = 0;
  for (const Case &c : allCases()) {
    if (c.op != GetParam())
      continue;
    for (DType type : c.types.empty() ? std::vector<DType>{DType::Undefined} : c.types) {
      SCOPED_TRACE("case " + std::to_string(index) + " of " + std::string(name(type)));
      expectAgreement(c, type);
    }
    ++index;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bodies, testing::ValuesIn(allOps()), [](const auto &info) { return info.param; });

TEST(BodiesTable, HasEveryOperator) {
  // A type's mark: files and plans do not show it; unscale's cases have it. A barrier's body has shapes that depend on
  // data, which no plan has: conformance/barrier runs it on onnxruntime.
  std::set<std::string> covered{"mark_scaled", "barrier"};
  for (const Case &c : allCases())
    covered.insert(c.op);
  mlir::MLIRContext context;
  context.loadDialect<TrainDialect>();
  unsigned count = 0;
  for (mlir::RegisteredOperationName op : context.getRegisteredOperations())
    if (op.getDialectNamespace() == "train") {
      ++count;
      EXPECT_TRUE(covered.contains(op.stripDialect().str())) << "no case for train." << op.stripDialect().str();
    }
  EXPECT_EQ(count, covered.size());
}

} // namespace
} // namespace recast::train::test
