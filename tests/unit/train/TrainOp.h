// One operator of dialect train as a model: run by its native kernel, and by its body in standard operators.
#pragma once
#include "tests/unit/reference/ReferenceTest.h"
#include <string>
#include <vector>

namespace recast::train::test {

using reference::test::Array;

/// An operand: random numbers, or the values given. Where `dtype` is undefined it has the type that the case runs in.
struct Operand {
  std::vector<int64_t> dims = {};
  DType dtype = DType::Undefined;
  double low = -1, high = 1;
  std::vector<double> values = {};
  bool isConstant = false; ///< An initializer of the model, and no input.
  bool isAbsent = false;
};

struct Attribute {
  std::string name;
  std::variant<int64_t, double, std::string, std::vector<int64_t>> value;
};

struct Case {
  std::string op;
  std::vector<Operand> operands;
  unsigned results = 1;
  std::vector<Attribute> attributes = {};
  int64_t sinceOpset = 7;
  /// Empty: the case has no operand whose type is open, and runs once.
  std::vector<DType> types = {DType::F64, DType::F32, DType::F16, DType::BF16};
};

/// Every operator, several cases each: forms with other attributes, shapes, and optional operands.
std::vector<Case> gradientCases();
std::vector<Case> stepCases();
std::vector<Case> optimizerCases();
std::vector<Case> precisionCases();

/// The operands' values, in order; equal for equal seeds.
std::vector<Array> makeOperands(const Case &c, DType type, uint64_t seed);

/// What the results are: by the kernel that the operator's name chooses, or by the body that the exporter writes, under
/// a name that no kernel knows. Failures are test failures; the result is then empty.
std::vector<Array> runNative(const Case &c, const std::vector<Array> &operands, int64_t opset);
std::vector<Array> runBody(const Case &c, const std::vector<Array> &operands, int64_t opset);

} // namespace recast::train::test
