// Matrix products and Einsum.
#include "ir/onnx/Einsum.h"
#include "passes/gradient/RuleHelpers.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// alpha op(a) op(c), both of rank 2.
Value gemm(NodeBuilder &b, Value lhs, Value rhs, bool transLhs, bool transRhs, double alpha = 1) {
  SmallVector<Value> operands{lhs, rhs};
  if (b.opset() < 11)
    operands.push_back(b.scalarLike(lhs, 0));
  SmallVector<NamedAttribute> attrs;
  if (alpha != 1)
    attrs.push_back(b.attr("alpha", alpha));
  if (transLhs)
    attrs.push_back(b.attr("transA", int64_t(1)));
  if (transRhs)
    attrs.push_back(b.attr("transB", int64_t(1)));
  return b.node("Gemm", operands, attrs);
}

Value matMul(NodeBuilder &b, Value lhs, Value rhs) { return b.node("MatMul", {lhs, rhs}); }

// y = lhs rhs, all of rank 2 or more: dlhs = dy rhs^T, drhs = lhs^T dy.
Value leftGrad(NodeBuilder &b, Value dy, Value lhs, Value rhs) {
  if (rankedType(lhs).getRank() == 2 && rankedType(rhs).getRank() == 2)
    return gemm(b, dy, rhs, false, true);
  return reduceTo(b, matMul(b, dy, b.matrixTranspose(rhs)), lhs);
}

Value rightGrad(NodeBuilder &b, Value dy, Value lhs, Value rhs) {
  int64_t leftRank = rankedType(lhs).getRank();
  if (rankedType(rhs).getRank() > 2)
    return reduceTo(b, matMul(b, b.matrixTranspose(lhs), dy), rhs);
  // One matrix for the whole batch: a single product over batch and rows.
  auto rows = [&](Value v) { return leftRank == 2 ? v : b.node("Flatten", {v}, b.attr("axis", leftRank - 1)); };
  return gemm(b, rows(lhs), rows(dy), true, false);
}

LogicalResult matMulGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  auto left = rankedType(c.x(0)), right = rankedType(c.x(1));
  if (!left || !right)
    return c.refuse("the gradient of MatMul needs the ranks of its inputs");
  if (left.getRank() == 1 && right.getRank() == 1) {
    for (unsigned i : {0, 1})
      if (c.needs(i))
        c.add(i, b.mul(c.dy(), c.x(1 - i)));
    return success();
  }
  // A vector is a matrix of one row or one column, and the axis is missing in y.
  Value dy = c.dy(), lhs = c.x(0), rhs = c.x(1);
  bool isRow = left.getRank() == 1, isColumn = right.getRank() == 1;
  if (isRow) {
    lhs = b.unsqueeze(lhs, int64_t(0));
    dy = b.unsqueeze(dy, right.getRank() - 2);
  } else if (isColumn) {
    rhs = b.unsqueeze(rhs, int64_t(1));
    dy = b.unsqueeze(dy, left.getRank() - 1);
  }
  if (c.needs(0)) {
    Value dlhs = leftGrad(b, dy, lhs, rhs);
    c.add(0, typed(isRow ? b.squeeze(dlhs, int64_t(0)) : dlhs, c.x(0)));
  }
  if (c.needs(1)) {
    Value drhs = rightGrad(b, dy, lhs, rhs);
    c.add(1, typed(isColumn ? b.squeeze(drhs, int64_t(1)) : drhs, c.x(1)));
  }
  return success();
}

// y = alpha A' B' + beta C
LogicalResult gemmGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Value dy = c.dy(), lhs = c.x(0), rhs = c.x(1);
  bool transLhs = c.node.getInt("transA", 0), transRhs = c.node.getInt("transB", 0);
  double alpha = c.node.getFloat("alpha", 1), beta = c.node.getFloat("beta", 1);
  if (c.needs(0))
    c.add(0,
          typed(transLhs ? gemm(b, rhs, dy, transRhs, true, alpha) : gemm(b, dy, rhs, false, !transRhs, alpha), lhs));
  if (c.needs(1))
    c.add(1,
          typed(transRhs ? gemm(b, dy, lhs, true, transLhs, alpha) : gemm(b, lhs, dy, !transLhs, false, alpha), rhs));
  if (c.needs(2))
    c.addReduced(2, beta == 1 ? dy : b.mulScalar(dy, beta));
  return success();
}

// --- Einsum ---

// The product over `operands`, in the letters `output`; letters that are not in it are summed.
Value einsum(NodeBuilder &b, ArrayRef<Value> operands, ArrayRef<std::string> terms, StringRef output) {
  if (operands.size() == 1 && terms.front() == output)
    return operands.front();
  std::string equation = llvm::join(terms, ",") + "->" + output.str();
  return b.node("Einsum", operands, b.attr("equation", StringRef(equation)));
}

// A diagonal, "ii": a letter that is repeated within an operand is renamed, and the identity [i, j] becomes one more
// operand. Which of them this is about is in `identities`.
LogicalResult separateDiagonals(RuleContext &c, EinsumEquation &equation, SmallVectorImpl<Value> &identities) {
  NodeBuilder &b = c.b;
  std::string spare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  for (StringRef term : equation.inputs)
    llvm::erase_if(spare,
                   [&](char letter) { return term.contains(letter) || StringRef(equation.output).contains(letter); });
  for (unsigned i = 0, n = c.node.numInputs(); i < n; ++i)
    for (size_t at = 0; at < equation.inputs[i].size(); ++at) {
      char letter = equation.inputs[i][at];
      if (equation.inputs[i].find(letter) == at)
        continue;
      if (spare.empty())
        return c.refuse("the equation has no letters left for its diagonals");
      equation.inputs[i][at] = spare.back();
      equation.inputs.push_back({letter, spare.back()});
      spare.pop_back();
      Value size = dimOf(b, c.x(i), static_cast<int64_t>(at));
      Type element = elementTypeOf(c.dy()), wide = element.isF64() ? element : Type(Float32Type::get(b.context()));
      identities.push_back(b.cast(b.node("EyeLike", {b.filled(b.concat({size, size}, 0), wide, 0)}), element));
    }
  return success();
}

// dx_i = Einsum of dy and the other operands, in the letters of x_i. A letter that only x_i has was summed over: its
// gradient is the same all along.
LogicalResult einsumGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  EinsumEquation equation;
  SmallVector<Value> values(c.node->operand_begin(), c.node->operand_end());
  Ints ranks;
  for (Value value : values) {
    auto type = rankedType(value);
    if (!type)
      return c.refuse("the gradient of Einsum needs the ranks of its inputs");
    ranks.push_back(type.getRank());
  }
  if (std::string fault = parseEinsum(c.node.getString("equation", ""), ranks, equation); !fault.empty())
    return c.refuse(fault);
  if (failed(separateDiagonals(c, equation, values)))
    return failure();
  unsigned numInputs = c.node.numInputs(), n = static_cast<unsigned>(values.size());
  SmallVector<Value> operands;
  SmallVector<std::string> terms;
  // Letters whose size 1 is broadcast against a larger one leave the operand.
  for (unsigned i = 0; i < n; ++i) {
    auto type = rankedType(values[i]);
    Ints broadcast;
    std::string term;
    for (auto [axis, letter] : llvm::enumerate(equation.inputs[i])) {
      bool isBroadcast = type.getDimSize(axis) == 1 && llvm::any_of(llvm::seq(0u, n), [&](unsigned j) {
                           size_t at = equation.inputs[j].find(letter);
                           return at != std::string::npos && rankedType(values[j]).getDimSize(at) != 1;
                         });
      if (isBroadcast)
        broadcast.push_back(static_cast<int64_t>(axis));
      else
        term += letter;
    }
    operands.push_back(b.squeeze(values[i], broadcast));
    terms.push_back(term);
  }
  for (unsigned i = 0; i < numInputs; ++i) {
    if (!c.needs(i))
      continue;
    SmallVector<Value> others{c.dy()};
    SmallVector<std::string> otherTerms{equation.output};
    std::string available = equation.output, result;
    for (unsigned j = 0; j < n; ++j)
      if (j != i) {
        others.push_back(operands[j]);
        otherTerms.push_back(terms[j]);
        available += terms[j];
      }
    Ints missing;
    for (auto [axis, letter] : llvm::enumerate(equation.inputs[i])) {
      if (StringRef(terms[i]).contains(letter) && StringRef(available).contains(letter))
        result += letter;
      else
        missing.push_back(static_cast<int64_t>(axis));
    }
    Value dx = b.unsqueeze(einsum(b, others, otherTerms, result), missing);
    c.add(i, missing.empty() ? typed(dx, c.x(i)) : expandLike(b, dx, c.x(i)));
  }
  return success();
}

const Rule kRules[] = {
    {"", "Einsum", 12, kNewest, Kind::Rule, einsumGrad},
    {"", "Gemm", 7, kNewest, Kind::Rule, gemmGrad, 0b111},
    {"", "MatMul", 1, kNewest, Kind::Rule, matMulGrad, 0b11},
};

} // namespace

ArrayRef<Rule> productRules() { return kRules; }

} // namespace recast::gradient
