// A step whose gradients are not finite, evaluated with every test of a gradient failing.
#pragma once
#include "passes/verify/FlowGraph.h"

namespace recast::verify {

/// What a value is in a step whose gradients are all non-finite.
struct Outcome {
  enum Type : uint8_t { Unknown, Old, Number } type = Unknown;
  ValueId state = kNone; ///< Of Old: the state input that the value equals.
  double number = 0;     ///< Of Number; booleans are 0 and 1.
  bool isOld(ValueId input) const { return type == Old && state == input; }
  bool operator==(const Outcome &o) const { return type == o.type && state == o.state && number == o.number; }
};

struct SkipAnalysis {
  std::vector<Outcome> outcomes; ///< Of each value.
  std::vector<char> zeroed;      ///< x * 0 and x - x: NaN exactly where x is not finite.
  std::vector<char> wild;        ///< May be infinite or NaN.
};

/// `batch`: for each value, whether it depends on the batch.
SkipAnalysis analyseSkip(const FlowGraph &flow, const std::vector<char> &batch, llvm::ArrayRef<State> states);

} // namespace recast::verify
