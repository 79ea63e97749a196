#include "ir/onnx/Formulas.h"
#include "ir/onnx/Einsum.h"
#include <limits>
#include <numbers>
#include <numeric>

using namespace mlir;
namespace recast::onnx_ir {

namespace {

using Ints = SmallVector<int64_t>;

constexpr int64_t kAveragesPaddingOpset = 7; // Of AveragePool: count_include_pad.
constexpr int64_t kSelectsOpset = 11;        // GatherElements.

RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
ArrayRef<int64_t> dimsOf(Value value) { return typeOf(value).getShape(); }
int64_t product(ArrayRef<int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t(1), std::multiplies<>());
}
int64_t axisOf(Node node, int64_t fallback) {
  int64_t axis = node.getInt("axis", fallback);
  return axis < 0 ? axis + typeOf(node.input(0)).getRank() : axis;
}

bool isSmallFloat(Node node) {
  Type element = elementTypeOf(node.input(0));
  return element.isF32() || element.isF16() || element.isBF16();
}
bool hasKnownSizes(Node node) {
  return llvm::all_of(node->getOperands(), [](Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type && type.hasStaticShape();
  });
}
bool isKnown(Node node) { return hasKnownSizes(node) && isSmallFloat(node); }

/// f(x), computed in f32.
template <typename Fn> Value inF32(Node node, NodeBuilder &b, Fn &&f) {
  Type element = elementTypeOf(node.input(0));
  return b.cast(f(b.cast(node.input(0), Float32Type::get(b.context()))), element);
}

// Functions of one number. --------------------------------------------------------------------------------------------

/// x where x is positive, -x elsewhere: of an odd function f, y = f(|x|) with the sign of x.
Value withSign(NodeBuilder &b, Value x, Value y) {
  return b.where(b.node("Less", {x, b.scalarLike(x, 0)}), b.neg(y), y);
}

/// (e^x + e^-x) / 2 by e^(|x| / 2), which overflows no sooner than the result.
Value cosh(NodeBuilder &b, Value x) {
  Value half = b.node("Exp", {b.mulScalar(b.node("Abs", {x}), 0.5)});
  return b.add(b.mul(b.mulScalar(half, 0.5), half), b.div(b.scalarLike(x, 0.5), b.mul(half, half)));
}

/// ln(1 + u), accurate near 0 (Kahan's form: Higham 2002, Accuracy and Stability of Numerical Algorithms, 1.14.1).
Value log1p(NodeBuilder &b, Value u) {
  Value one = b.scalarLike(u, 1), w = b.add(u, one), moved = b.sub(w, one);
  Value isTiny = b.node("Equal", {moved, b.scalarLike(u, 0)});
  Value isInfinite = b.node("Equal", {u, b.scalarLike(u, std::numeric_limits<double>::infinity())});
  return b.where(b.node("Or", {isTiny, isInfinite}), u, b.div(b.mul(b.node("Log", {w}), u), moved));
}

/// atanf of the Cephes library (Moshier): 2 units in the last place.
Value atan(NodeBuilder &b, Value x) {
  using std::numbers::pi;
  auto number = [&](double value) { return b.scalarLike(x, value); };
  Value a = b.node("Abs", {x}), one = number(1);
  Value isLarge = b.node("Greater", {a, number(2.414213562373095)});   // tan 3 pi / 8
  Value isMiddle = b.node("Greater", {a, number(0.4142135623730950)}); // tan pi / 8
  Value r = b.where(isLarge, b.div(number(-1), a), b.where(isMiddle, b.div(b.sub(a, one), b.add(a, one)), a));
  Value base = b.where(isLarge, number(pi / 2), b.where(isMiddle, number(pi / 4), number(0)));
  Value z = b.square(r), p = b.addScalar(b.mulScalar(z, 8.05374449538e-2), -1.38776856032e-1);
  p = b.addScalar(b.mul(p, z), 1.99777106478e-1);
  p = b.addScalar(b.mul(p, z), -3.33329491539e-1);
  return withSign(b, x, b.add(base, b.add(b.mul(b.mul(p, z), r), r)));
}

bool isNumeric(Node node) {
  return elementTypeOf(node.input(0)).isIntOrFloat() && !elementTypeOf(node.input(0)).isInteger(1);
}

/// ONNX has a body for it, but only from opset 18 on.
Value buildShrink(Node node, NodeBuilder &b) {
  Value x = node.input(0), lambda = b.scalarLike(x, node.getFloat("lambd", 0.5F));
  Value bias = b.scalarLike(x, node.getFloat("bias", 0));
  Value small = b.where(b.node("Greater", {x, lambda}), b.sub(x, bias), b.scalarLike(x, 0));
  return b.where(b.node("Less", {x, b.neg(lambda)}), b.add(x, bias), small);
}

Value largeOr(NodeBuilder &b, Value x, Value usual) {
  Value isLarge = b.node("Greater", {x, b.scalarLike(x, 1e10)}); // Its square is no f32.
  return b.where(isLarge, b.addScalar(b.node("Log", {x}), std::numbers::ln2), usual);
}

Value buildTan(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) { return b.div(b.node("Sin", {x}), b.node("Cos", {x})); });
}
Value buildSinh(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) { return b.mul(b.node("Tanh", {x}), cosh(b, x)); });
}
Value buildCosh(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) { return cosh(b, x); });
}
Value buildAtan(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) { return atan(b, x); });
}
Value buildAsin(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Value one = b.scalarLike(x, 1);
    return atan(b, b.div(x, b.node("Sqrt", {b.mul(b.sub(one, x), b.add(one, x))})));
  });
}
Value buildAcos(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Value one = b.scalarLike(x, 1);
    return b.mulScalar(atan(b, b.node("Sqrt", {b.div(b.sub(one, x), b.add(one, x))})), 2);
  });
}
Value buildAsinh(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Value a = b.node("Abs", {x}), square = b.square(a), one = b.scalarLike(x, 1);
    Value root = b.node("Sqrt", {b.add(square, one)});
    return withSign(b, x, largeOr(b, a, log1p(b, b.add(a, b.div(square, b.add(root, one))))));
  });
}
Value buildAcosh(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Value t = b.addScalar(x, -1);
    return largeOr(b, x, log1p(b, b.add(t, b.node("Sqrt", {b.mul(t, b.addScalar(t, 2))}))));
  });
}
Value buildAtanh(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Value a = b.node("Abs", {x}), ratio = b.div(b.mulScalar(a, 2), b.sub(b.scalarLike(x, 1), a));
    return withSign(b, x, b.mulScalar(log1p(b, ratio), 0.5));
  });
}

// Rows and axes. ------------------------------------------------------------------------------------------------------

/// A row of zeros stays one.
Value buildLpNormalization(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Ints axes{axisOf(node, -1)};
    Value norm = node.getInt("p", 2) == 1 ? b.sum(b.node("Abs", {x}), axes, true)
                                          : b.node("Sqrt", {b.sum(b.square(x), axes, true)});
    Value isZero = b.node("Equal", {norm, b.scalarLike(x, 0)});
    return b.where(isZero, b.scalarLike(x, 0), b.div(x, norm));
  });
}

/// (x - mean) / (deviation + 1e-9) over the axes.
Value buildMeanVarianceNormalization(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    Ints axes = node.getInts("axes").value_or(Ints{0, 2, 3});
    auto mean = [&](Value v) { return b.reduce("ReduceMean", v, axes, /*keepDims=*/true); };
    Value centred = b.sub(x, mean(x)), deviation = b.node("Sqrt", {mean(b.square(centred))});
    return b.div(centred, b.addScalar(deviation, 1e-9));
  });
}

bool acceptsReverseSequence(Node node) {
  return hasKnownSizes(node) && typeOf(node.input(0)).getRank() >= 2 && node.opset() >= kSelectsOpset;
}

/// Of each sequence the first `length` elements in reverse order: element length - 1 - t at t. A length beyond the axis
/// leads to an index outside of it, and so does one below 0.
Value buildReverseSequence(Node node, NodeBuilder &b) {
  Value x = node.input(0);
  ArrayRef<int64_t> dims = dimsOf(x);
  int64_t time = node.getInt("time_axis", 0), batch = node.getInt("batch_axis", 1);
  Ints numbers(dims[time]), alongTime(dims.size(), 1), alongBatch(dims.size(), 1);
  std::iota(numbers.begin(), numbers.end(), 0);
  alongTime[time] = dims[time];
  alongBatch[batch] = dims[batch];
  Value at = b.reshape(b.ints(numbers), alongTime), length = b.reshape(node.input(1), alongBatch);
  Value rest = b.where(b.node("Less", {length, b.intScalar(0)}), b.intScalar(dims[time]), at);
  Value index = b.where(b.node("Less", {at, length}), b.sub(b.sub(length, b.intScalar(1)), at), rest);
  return b.node("GatherElements", {x, b.expand(index, b.ints(dims))}, b.attr("axis", time));
}

bool acceptsLrn(Node node) {
  return isKnown(node) && typeOf(node.input(0)).getRank() >= 2 && product(dimsOf(node.input(0))) > 0 &&
         node.opset() >= kAveragesPaddingOpset;
}

/// x / (bias + alpha / size * the sum of x^2 over a window of channels) ^ beta. Such a sum is size times an average
/// over [N, 1, C, rest] with zeros around.
Value buildLrn(Node node, NodeBuilder &b) {
  return inF32(node, b, [&](Value x) {
    ArrayRef<int64_t> dims = dimsOf(x);
    int64_t size = node.getInt("size", 1);
    Value planes = b.reshape(b.square(x), {dims[0], 1, dims[1], product(dims.drop_front(2))});
    Value mean = b.node("AveragePool", {planes},
                        {b.attr("kernel_shape", {size, 1}), b.attr("pads", {(size - 1) / 2, 0, size / 2, 0}),
                         b.attr("count_include_pad", int64_t(1))});
    Value sum = b.mulScalar(b.reshape(mean, dims), node.getFloat("alpha", 1e-4));
    Value divisor = b.addScalar(sum, node.getFloat("bias", 1));
    return b.div(x, b.node("Pow", {divisor, b.scalarLike(divisor, node.getFloat("beta", 0.75))}));
  });
}

Value buildHardmax(Node node, NodeBuilder &b) {
  Value x = node.input(0);
  bool isFlat = node.sinceVersion() < 13; // All axes from `axis` on are one row.
  int64_t axis = axisOf(node, isFlat ? 1 : -1);
  if (isFlat) {
    ArrayRef<int64_t> dims = dimsOf(x);
    x = b.reshape(x, {product(dims.take_front(axis)), product(dims.drop_front(axis))});
    axis = 1;
  }
  int64_t rank = typeOf(x).getRank(), size = dimsOf(x)[axis];
  Ints along(rank, 1), numbers(size);
  along[axis] = size;
  std::iota(numbers.begin(), numbers.end(), 0);
  Value first = b.node("ArgMax", {x}, {b.attr("axis", axis), b.attr("keepdims", int64_t(1))});
  Value y = b.castLike(b.node("Equal", {b.reshape(b.ints(numbers), along), first}), x);
  return isFlat ? b.reshape(y, dimsOf(node.input(0))) : y;
}

// Einsum. -------------------------------------------------------------------------------------------------------------

/// A tensor with one letter an axis.
struct Term {
  Value value;
  std::string letters;
};

/// False for letters that broadcast, and for diagonals: a letter twice in one term.
bool readEinsum(Node node, EinsumEquation &equation) {
  if (!isKnown(node))
    return false;
  Ints ranks;
  for (Value value : node->getOperands())
    ranks.push_back(typeOf(value).getRank());
  if (!parseEinsum(node.getString("equation", ""), ranks, equation).empty())
    return false;
  llvm::StringMap<int64_t> sizes;
  for (auto [i, letters] : llvm::enumerate(equation.inputs))
    for (auto [axis, letter] : llvm::enumerate(letters)) {
      int64_t size = dimsOf(node.input(static_cast<unsigned>(i)))[axis];
      if (StringRef(letters).count(letter) > 1 ||
          sizes.try_emplace(StringRef(&letters[axis], 1), size).first->second != size)
        return false;
    }
  return true;
}

bool acceptsEinsum(Node node) {
  EinsumEquation equation;
  return readEinsum(node, equation);
}

bool has(StringRef letters, char letter) { return letters.contains(letter); }

/// The axes in another order.
Term ordered(NodeBuilder &b, Term term, StringRef letters) {
  if (term.letters == letters)
    return term;
  Ints perm;
  for (char letter : letters)
    perm.push_back(static_cast<int64_t>(term.letters.find(letter)));
  return {b.transpose(term.value, perm), letters.str()};
}

/// Letters that nothing else has are summed.
Term summed(NodeBuilder &b, Term term, StringRef needed) {
  Ints axes;
  std::string kept;
  for (auto [axis, letter] : llvm::enumerate(term.letters))
    if (has(needed, letter))
      kept += letter;
    else
      axes.push_back(static_cast<int64_t>(axis));
  return axes.empty() ? term : Term{b.sum(term.value, axes, false), kept};
}

/// A product of matrices: batch letters of both, then those of one alone; what is not `needed` is summed.
Term multiplied(NodeBuilder &b, Term left, Term right, StringRef needed) {
  left = summed(b, left, right.letters + needed.str());
  right = summed(b, right, left.letters + needed.str());
  std::string batch, inner, rows, columns;
  for (char letter : left.letters)
    (!has(right.letters, letter) ? rows : has(needed, letter) ? batch : inner) += letter;
  for (char letter : right.letters)
    if (!has(left.letters, letter))
      columns += letter;
  left = ordered(b, left, batch + rows + inner);
  right = ordered(b, right, batch + inner + columns);
  ArrayRef<int64_t> leftDims = dimsOf(left.value), rightDims = dimsOf(right.value);
  ArrayRef<int64_t> outer = leftDims.take_front(batch.size()), rowDims = leftDims.slice(batch.size(), rows.size());
  ArrayRef<int64_t> columnDims = rightDims.take_back(columns.size());
  int64_t n = product(outer), depth = product(leftDims.take_back(inner.size()));
  Value x = b.reshape(left.value, {n, product(rowDims), depth});
  Value y = b.reshape(right.value, {n, depth, product(columnDims)});
  Ints dims(outer);
  llvm::append_range(dims, rowDims);
  llvm::append_range(dims, columnDims);
  return {b.reshape(b.node("MatMul", {x, y}), dims), batch + rows + columns};
}

Value buildEinsum(Node node, NodeBuilder &b) {
  EinsumEquation equation;
  readEinsum(node, equation);
  SmallVector<Term> terms;
  for (auto [i, letters] : llvm::enumerate(equation.inputs))
    terms.push_back({node.input(static_cast<unsigned>(i)), letters});
  Term result = terms.front();
  for (size_t i = 1; i < terms.size(); ++i) {
    std::string needed = equation.output;
    for (const Term &later : llvm::drop_begin(terms, i + 1))
      needed += later.letters;
    result = multiplied(b, result, terms[i], needed);
  }
  return ordered(b, summed(b, result, equation.output), equation.output).value;
}

constexpr Definition kFormulas[] = {
    {"Acos", isSmallFloat, buildAcos},
    {"Acosh", isSmallFloat, buildAcosh},
    {"Asin", isSmallFloat, buildAsin},
    {"Asinh", isSmallFloat, buildAsinh},
    {"Atan", isSmallFloat, buildAtan},
    {"Atanh", isSmallFloat, buildAtanh},
    {"Cosh", isSmallFloat, buildCosh},
    {"Einsum", acceptsEinsum, buildEinsum},
    {"Hardmax", isKnown, buildHardmax},
    {"LpNormalization", isKnown, buildLpNormalization},
    {"LRN", acceptsLrn, buildLrn},
    {"MeanVarianceNormalization", isSmallFloat, buildMeanVarianceNormalization},
    {"ReverseSequence", acceptsReverseSequence, buildReverseSequence},
    {"Shrink", isNumeric, buildShrink},
    {"Sinh", isSmallFloat, buildSinh},
    {"Tan", isSmallFloat, buildTan},
};

} // namespace

llvm::ArrayRef<Definition> formulas() { return kFormulas; }

} // namespace recast::onnx_ir
