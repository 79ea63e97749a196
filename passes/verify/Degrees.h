// How every value of a graph grows with some scalars: value(s·t) = s^degree · value(t).
#pragma once
#include "passes/verify/FlowGraph.h"
#include "llvm/ADT/DenseMap.h"
#include <map>

namespace recast::verify {

/// A symbol and the sign with which a value is it: a constant 1/1024 is the loss scale 1024 to the power -1.
struct Symbol {
  uint32_t index;
  float sign = 1;
  int loop = -1; ///< The loop in every iteration of which it is another number; it means nothing outside.
};

/// What the analysis met on its way. The degree is that of the operand that did not fit.
struct DegreeEvent {
  enum Type : uint8_t {
    Mismatch,  ///< A sum of values of different degrees.
    Clipped,   ///< A value of degree other than 0 against a fixed bound.
    Compared,  ///< The same in a comparison.
    Distorted, ///< A function that is not homogeneous, of a tensor of degree other than 0.
    Repeated,  ///< The scale multiplies what carries it already.
    Removed,   ///< The scale divides what does not carry it.
  };
  Type type;
  ValueId node;
  float degree;
};

class Degrees {
public:
  /// `isCount`: symbols are counts, which are compared with and bounded by constants, and no events but mismatches are
  /// recorded. Otherwise they are loss scales.
  Degrees(const FlowGraph &flow, const llvm::DenseMap<ValueId, Symbol> &symbols, const std::vector<char> &batch,
          bool isCount);

  /// The degree in all symbols together; 0 where the value is 0, unknown, or does not depend on them.
  float total(ValueId value) const;
  /// The degree in each symbol that has one.
  llvm::ArrayRef<std::pair<uint32_t, float>> terms(ValueId value) const;
  /// True for values that are powers of the symbols times constants.
  bool isPure(ValueId value) const { return pure[value]; }
  const std::vector<DegreeEvent> &events() const { return recorded; }

  /// Symbols from here on are factors that `total` leaves out; from kFirstFresh on nothing is known about them.
  static constexpr uint32_t kUncounted = 1u << 30;

private:
  static constexpr uint32_t kFirstFresh = 1u << 31;
  using Terms = std::vector<std::pair<uint32_t, float>>;
  static constexpr int kUnset = -1, kAny = -2; ///< kAny: zeros and infinities, which fit everything.

  int transfer(ValueId value);
  int intern(Terms terms);
  int scaled(int id, float factor);
  int plus(int a, int b, float factor);
  float totalOf(int id) const;
  int withoutLoop(int id, int loop);
  int constantDegree(ValueId value) const;
  bool isGuard(ValueId value) const;
  bool mayCarryUnseen(ValueId value) const;
  int join(ValueId value, DegreeEvent::Type type, bool report);
  int product(ValueId value);
  int distort(ValueId value);
  int fresh(ValueId value, bool report);
  void record(DegreeEvent::Type type, ValueId node, float degree) {
    if (!isCount || type == DegreeEvent::Mismatch)
      recorded.push_back({type, node, degree});
  }

  const FlowGraph &flow;
  const llvm::DenseMap<ValueId, Symbol> &symbols;
  const std::vector<char> &batch;
  bool isCount;
  llvm::DenseMap<uint32_t, int> loops;
  std::vector<int> degrees;
  std::vector<char> pure, statistic;
  std::vector<char> touched;   ///< Computed with a symbol, whatever its degree.
  bool isFixed = true;         ///< Symbols are constants, which may have been folded into others.
  std::vector<char> misjudged; ///< Booleans from comparisons that were recorded.
  std::vector<Terms> table;
  std::map<Terms, int> index;
  std::vector<DegreeEvent> recorded;
};

} // namespace recast::verify
