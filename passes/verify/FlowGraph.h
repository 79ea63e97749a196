// A training graph as the rules see it: what each value is computed from, and how it grows when an operand grows.
// Control flow and local functions are flattened, so that a rule walks one list.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace recast::verify {

using ValueId = uint32_t;
inline constexpr ValueId kNone = ~0u;

/// What an operator does to the scale of its operands. x, y are main operands, s stands for a common factor.
enum class Kind : uint8_t {
  Source,      ///< A graph input, or state.
  Constant,    ///< Known from the file, or from shapes; `number` where all elements are one number.
  Move,        ///< x in another place, type or sum: s·x gives s·y.
  Join,        ///< Several tensors side by side.
  Linear,      ///< Linear in x, which does not show in single elements: the gradient of an operator.
  Sum,         ///< x + y or x - y.
  Product,     ///< x · y: element-wise, matrix products, convolutions.
  Quotient,    ///< x / y.
  Power,       ///< x ^ exponent, element-wise.
  Statistic,   ///< A norm or extremum over elements: s·x gives s^exponent·y.
  Homogeneous, ///< s·x gives s·y, and not linear: Abs.
  Extremum,    ///< Min, Max, Clip.
  Select,      ///< Main operands a, b and a condition: condition ? a : b.
  Compare,     ///< Booleans by comparing x with y.
  Test,        ///< Booleans by testing for NaN or infinities.
  Logic,       ///< Booleans from booleans.
  Sign,        ///< Does not depend on the scale of x.
  Nonlinear,   ///< Any other function.
  Opaque,      ///< An operator that nothing is known about.
  Count,       ///< The number of labels that a loss with an ignore index or weights divides by; main operand: labels.
  Carry,       ///< A loop's carried value: main operands initial and next.
  LoopResult,  ///< The value that leaves a loop: initial and next.
};

enum class Element : uint8_t { Other, Bool, Int, F64, F32, Low }; ///< Low: f16, bf16 and narrower.

/// Meaning of FlowNode::code. Of an arithmetic Select: 1 + the main operand that it gives with a rounding; 0: none.
enum class CompareOp : uint8_t { Less, LessOrEqual, Greater, GreaterOrEqual, Equal };
enum class LogicOp : uint8_t { And, Or, Not, Xor };
enum class ExtremumOp : uint8_t { Clip, Min, Max };

struct FlowNode {
  enum Flag : uint16_t {
    Elementwise = 1, ///< Element i of the result depends on elements i of the main operands.
    Subtract = 2,    ///< Of a Sum: main operands after the first are subtracted.
    Barrier = 4,
    Slice = 8,          ///< A part of the operand, another one in every iteration or use.
    Reduce = 16,        ///< A Move that sums.
    TestsNan = 32,      ///< Of a Test.
    TestsInf = 64,      ///< Of a Test.
    TrueIfFinite = 128, ///< Of a Test.
    External = 256,     ///< A Source that the outside computes in the middle of the step.
    Collects = 512,     ///< A Move that stacks a loop's results.
    Mean = 1024,        ///< A Move or Sum that divides by a number of elements.
    Negates = 2048,     ///< A Move that changes the sign.
    Arithmetic = 4096,  ///< A Select by products with 0 and 1, so that NaN comes through from either side.
  };
  Kind kind = Kind::Opaque;
  Element element = Element::Other;
  bool isSingle = false; ///< Has one element, whatever its rank.
  uint8_t code = 0;
  uint16_t flags = 0;
  uint16_t mains = 0; ///< The first operands are main operands; the others only say where to find elements.
  float exponent = 1;
  int loop = -1; ///< The innermost loop that the node is in; for a LoopResult or a stacked result: that it leaves.
  double number = std::numeric_limits<double>::quiet_NaN();
  uint64_t signature = 0;       ///< Equal for nodes that compute the same function of their operands.
  const void *origin = nullptr; ///< The operator that it came from.
  const void *type = nullptr;   ///< Equal for values of equal type and shape; null where it is not known.
  const void *elementType = nullptr;
  llvm::SmallVector<ValueId, 3> inputs;

  bool has(Flag flag) const { return flags & flag; }
  bool isNumber() const { return kind == Kind::Constant && !std::isnan(number); }
  llvm::ArrayRef<ValueId> main() const { return llvm::ArrayRef(inputs).take_front(mains); }
  /// The operands whose values enter the result; a Select's condition does not.
  llvm::ArrayRef<ValueId> data() const { return kind == Kind::Select ? main() : llvm::ArrayRef(inputs); }
  ValueId condition() const { return kind == Kind::Select && inputs.size() > 2 ? inputs[2] : kNone; }
};

struct NamedValue {
  ValueId value = kNone;
  std::string name;
  bool hasDefault = false; ///< Of a source: the file has its value.
};

/// A value that lives from step to step.
struct State {
  ValueId input = kNone, next = kNone;
  std::string name;
};

/// Every node has one result, so a node's index is its value. Operands come before their users, except for the second
/// operand of a Carry.
struct FlowGraph {
  mlir::OwningOpRef<mlir::ModuleOp> module; ///< A copy, with functions in place, that the nodes' origins are in.
  std::vector<FlowNode> nodes;
  std::vector<NamedValue> sources; ///< Graph inputs and initializers.
  std::vector<NamedValue> outputs; ///< Of the graph, new states included.
  std::vector<State> states;
  std::vector<NamedValue> inPlace;              ///< Values written over the source of that name by an operator.
  std::vector<NamedValue> buffers;              ///< The same for operators that only add to the source.
  std::vector<ValueId> scales;                  ///< Values that an operator names as its loss scale.
  std::string lossName;                         ///< Where the file names the loss.
  std::function<std::string(ValueId)> describe; ///< The node that computes a value, for reports.

  const FlowNode &operator[](ValueId value) const { return nodes[value]; }
  size_t size() const { return nodes.size(); }
};

} // namespace recast::verify
