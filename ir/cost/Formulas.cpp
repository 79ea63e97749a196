#include "ir/cost/Formulas.h"
#include "ir/train/Dialect.h"
#include "llvm/Support/MathExtras.h"
#include <cctype>
#include <map>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::cost {

int64_t saturatingAdd(int64_t a, int64_t b) {
  int64_t result;
  return llvm::AddOverflow(a, b, result) ? INT64_MAX : result;
}

int64_t saturatingMultiply(int64_t a, int64_t b) {
  int64_t result;
  return llvm::MulOverflow(a, b, result) ? INT64_MAX : result;
}

RankedTensorType Sizes::typeOf(Value value) {
  Type type = value.getType();
  if (auto scaled = dyn_cast<train::ScaledType>(type))
    type = scaled.getTensor();
  if (isa<UnrankedTensorType>(type))
    isOpen = true;
  else if (!isa<RankedTensorType>(type))
    isUntyped = true;
  return dyn_cast<RankedTensorType>(type);
}

int64_t Sizes::elems(Value value) {
  RankedTensorType type = isAbsent(value) ? RankedTensorType() : typeOf(value);
  if (!type)
    return 0;
  if (!type.hasStaticShape()) {
    isOpen = true;
    return 0;
  }
  int64_t count = 1;
  for (int64_t size : type.getShape())
    count = saturatingMultiply(count, size);
  return count;
}

int64_t Sizes::bytes(Value value) {
  int64_t count = elems(value);
  unsigned bits = count ? storageBits(typeOf(value).getElementType()) : 0;
  return bits % 8 ? llvm::divideCeil(saturatingMultiply(count, bits), 8) : saturatingMultiply(count, bits / 8);
}

int64_t Sizes::rank(Value value) {
  RankedTensorType type = isAbsent(value) ? RankedTensorType() : typeOf(value);
  return type ? type.getRank() : 0;
}

int64_t Sizes::dim(Value value, int64_t index) {
  RankedTensorType type = isAbsent(value) ? RankedTensorType() : typeOf(value);
  if (!type)
    return 0;
  index += index < 0 ? type.getRank() : 0;
  if (index < 0 || index >= type.getRank())
    return 0;
  if (!type.isDynamicDim(static_cast<unsigned>(index)))
    return type.getDimSize(static_cast<unsigned>(index));
  isOpen = true;
  return 0;
}

namespace {

int64_t multiplyAdds(std::initializer_list<int64_t> factors) {
  int64_t result = 2;
  for (int64_t factor : factors)
    result = saturatingMultiply(result, factor);
  return result;
}

/// Elements of `weights` that one element of the side with their first dimension meets.
int64_t perChannel(Sizes &s, Value weights) {
  int64_t channels = s.dim(weights, 0);
  return channels ? s.elems(weights) / channels : 0;
}

int64_t matMul(Sizes &s) { return multiplyAdds({s.elems(s.node.output()), s.dim(s.node.input(0), -1)}); }

int64_t transposableMatMul(Sizes &s) {
  bool isTransposed = s.node.getInt("transA", 0) != 0;
  return multiplyAdds({s.elems(s.node.output()), s.dim(s.node.input(0), isTransposed ? -2 : -1)});
}

int64_t conv(Sizes &s) { return multiplyAdds({s.elems(s.node.output()), perChannel(s, s.node.input(1))}); }

/// (x, x_scale, x_zero_point, w, ...)
int64_t quantisedConv(Sizes &s) { return multiplyAdds({s.elems(s.node.output()), perChannel(s, s.node.input(3))}); }

/// ConvTranspose (x, w), and conv_grad_input (dy, w): each element of the first operand meets its channel's weights.
int64_t convTranspose(Sizes &s) { return multiplyAdds({s.elems(s.node.input(0)), perChannel(s, s.node.input(1))}); }

/// (x, dy [N, M, ...]) -> dw [M, C / group, kernel...]: each element of dy meets the weights of its channel.
int64_t convGradWeight(Sizes &s) { return multiplyAdds({s.elems(s.node.input(1)), perChannel(s, s.node.output())}); }

/// X [steps, batch, inputs] (or batch first), W [directions, gates * hidden, inputs], R [.., gates * hidden, hidden].
int64_t recurrent(Sizes &s) {
  Value x = s.node.input(0);
  return multiplyAdds({saturatingMultiply(s.dim(x, 0), s.dim(x, 1)),
                       saturatingAdd(s.elems(s.node.input(1)), s.elems(s.node.input(2)))});
}

/// Q times K, softmax, times V: [batch, heads, length, size], or [batch, length, heads * size] with the heads as
/// attributes. Every query counts with every key, masked or not.
int64_t attention(Sizes &s) {
  Node node = s.node;
  Value q = node.input(0), k = node.input(1), v = node.input(2);
  bool isFlat = s.rank(q) == 3;
  int64_t heads = isFlat ? node.getInt("q_num_heads", 1) : s.dim(q, 1);
  int64_t keyHeads = isFlat ? node.getInt("kv_num_heads", 1) : s.dim(k, 1);
  int64_t queries = s.dim(q, -2), keys = s.dim(k, -2);
  if (Value past = node.input(4))
    keys = saturatingAdd(keys, s.dim(past, 2));
  if (heads <= 0 || keyHeads <= 0)
    return 0;
  int64_t size = isFlat ? s.dim(q, -1) / heads : s.dim(q, -1);
  int64_t valueSize = isFlat ? s.dim(v, -1) / keyHeads : s.dim(v, -1);
  int64_t pairs = saturatingMultiply(saturatingMultiply(s.dim(q, 0), heads), saturatingMultiply(queries, keys));
  return saturatingAdd(multiplyAdds({pairs, saturatingAdd(size, valueSize)}),
                       saturatingMultiply(pairs, SoftmaxOp::facts().flops));
}

bool isLetter(int label) { return std::isalpha(label) != 0; }

/// Labels of one term of an equation, letters and (as 0, 1, ...) dimensions of the ellipsis from the right.
using Labels = SmallVector<int>;

Labels readTerm(StringRef term, int64_t rank) {
  Labels labels;
  int64_t named = llvm::count_if(term, isLetter);
  for (size_t i = 0; i < term.size(); ++i) {
    if (isLetter(term[i]))
      labels.push_back(term[i]);
    if (term[i] != '.')
      continue;
    for (int64_t hidden = rank - named; hidden > 0; --hidden)
      labels.push_back(static_cast<int>(hidden - 1));
    i += 2;
  }
  return labels;
}

/// Operands are contracted from left to right; a label goes when neither the output nor a later operand has it.
int64_t einsum(Sizes &s) {
  std::string equation = s.node.getString("equation", "").str();
  llvm::erase(equation, ' ');
  auto [left, right] = StringRef(equation).split("->");
  SmallVector<StringRef> terms;
  left.split(terms, ',');
  if (terms.size() != s.node.numInputs())
    return 0;
  std::map<int, int64_t> sizes;
  std::map<int, unsigned> lastUse; // An operand, or their number: the output.
  SmallVector<Labels> operands;
  for (auto [i, term] : llvm::enumerate(terms)) {
    Value operand = s.node.input(static_cast<unsigned>(i));
    operands.push_back(readTerm(term, s.rank(operand)));
    for (auto [axis, label] : llvm::enumerate(operands.back())) {
      sizes[label] = std::max(sizes[label], s.dim(operand, static_cast<int64_t>(axis)));
      lastUse[label] = static_cast<unsigned>(i);
    }
  }
  unsigned end = s.node.numInputs();
  if (StringRef(equation).contains("->")) {
    for (int label : readTerm(right, s.rank(s.node.output())))
      lastUse[label] = end;
  } else {
    // Implicit output: the ellipsis, and every letter that occurs once.
    for (auto &[label, last] : lastUse)
      if (!isLetter(label) || left.count(static_cast<char>(label)) == 1)
        last = end;
  }
  if (operands.size() == 1)
    return operands[0].size() > static_cast<size_t>(s.rank(s.node.output())) ? s.elems(s.node.input(0)) : 0;
  int64_t flops = 0;
  std::map<int, bool> held;
  for (auto [i, labels] : llvm::enumerate(operands)) {
    for (int label : labels)
      held[label] = true;
    int64_t space = 2;
    for (auto [label, isHeld] : held)
      space = saturatingMultiply(space, sizes[label]);
    if (i > 0)
      flops = saturatingAdd(flops, space);
    std::erase_if(held, [&, now = i](const auto &entry) { return i > 0 && lastUse[entry.first] <= now; });
  }
  return flops;
}

/// A window for each element of the pooled side.
int64_t window(Sizes &s, Value pooled) {
  int64_t flops = s.elems(pooled);
  auto kernel = s.node.getInts("kernel_shape");
  for (int64_t size : kernel ? *kernel : SmallVector<int64_t>())
    flops = saturatingMultiply(flops, std::max<int64_t>(size, 0));
  return flops;
}
int64_t pool(Sizes &s) { return window(s, s.node.output()); }
int64_t poolGrad(Sizes &s) { return window(s, s.node.input(0)); }

/// Neighbours along each spatial axis: 2 in mode linear, 4 in mode cubic.
int64_t resize(Sizes &s) {
  StringRef mode = s.node.getString("mode", "nearest");
  int64_t neighbours = mode == "linear" ? 2 : mode == "cubic" ? 4 : 0;
  int64_t flops = neighbours ? 2 : 0;
  for (int64_t i = 2; i < s.rank(s.node.output()); ++i)
    flops = saturatingMultiply(flops, neighbours);
  return saturatingMultiply(flops, s.elems(s.node.output()));
}

/// Each operand after the first meets the result so far.
int64_t variadic(Sizes &s) {
  return saturatingMultiply(s.elems(s.node.output()), std::max<int64_t>(s.node.numInputs(), 1) - 1);
}

/// A square, a sum over the window, and what follows for each element.
int64_t localResponse(Sizes &s) {
  return saturatingMultiply(s.elems(s.node.input(0)), LRNOp::facts().flops + s.node.getInt("size", 1));
}

/// Over many tensors: each element of each operand.
int64_t everyOperand(Sizes &s) {
  int64_t count = 0;
  for (unsigned i = 0; i < s.node.numInputs(); ++i)
    count = saturatingAdd(count, s.elems(s.node.input(i)));
  return saturatingMultiply(count, cast<NodeInterface>(s.node.operation()).facts().flops);
}

constexpr Formula kFormulas[] = {
    {"", "MatMul", Work::Product, matMul},
    {"", "MatMulInteger", Work::Product, matMul},
    {"", "QLinearMatMul", Work::Product, matMul},
    {"", "Gemm", Work::Product, transposableMatMul},
    {"com.microsoft", "FusedMatMul", Work::Product, transposableMatMul},
    {"", "Einsum", Work::Product, einsum},
    {"", "Attention", Work::Product, attention},
    {"", "LSTM", Work::Product, recurrent},
    {"", "GRU", Work::Product, recurrent},
    {"", "RNN", Work::Product, recurrent},
    {"", "Conv", Work::Convolution, conv},
    {"", "ConvInteger", Work::Convolution, conv},
    {"", "QLinearConv", Work::Convolution, quantisedConv},
    {"", "ConvTranspose", Work::Convolution, convTranspose},
    {"recast", "conv_grad_input", Work::Convolution, convTranspose},
    {"recast", "conv_grad_weight", Work::Convolution, convGradWeight},
    {"", "MaxPool", Work::Reduction, pool},
    {"", "AveragePool", Work::Reduction, pool},
    {"", "LpPool", Work::Reduction, pool},
    {"recast", "max_pool_grad", Work::Reduction, poolGrad},
    {"recast", "average_pool_grad", Work::Reduction, poolGrad},
    {"", "Resize", Work::Elementwise, resize},
    {"", "LRN", Work::Reduction, localResponse},
    {"", "Sum", Work::Elementwise, variadic},
    {"", "Mean", Work::Elementwise, variadic},
    {"", "Max", Work::Elementwise, variadic},
    {"", "Min", Work::Elementwise, variadic},
    {"recast", "unscale", Work::Elementwise, everyOperand},
    {"recast", "check_finite", Work::Reduction, everyOperand},
    {"recast", "grad_norm", Work::Reduction, everyOperand},
    {"recast", "grad_stats", Work::Reduction, everyOperand},
    {"recast", "clip_grad_norm", Work::Elementwise, everyOperand},
    {"recast", "clip_grad_value", Work::Elementwise, everyOperand},
};

} // namespace

const Formula *findFormula(Node node) {
  StringRef domain = node.domain(), op = node.opType();
  const Formula *found =
      llvm::find_if(kFormulas, [&](const Formula &entry) { return entry.domain == domain && entry.op == op; });
  return found == std::end(kFormulas) ? nullptr : found;
}

} // namespace recast::cost
