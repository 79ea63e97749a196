#include "runtime/reference/ProductContraction.h"

namespace recast::reference {
namespace {

constexpr int kLabels = 52 + kMaxRank; ///< a-z, A-Z, and the dimensions of the ellipsis counted from the right.
constexpr int kMaxOperands = 8;
constexpr int kOutput = kMaxOperands; ///< Index of the output in Equation::strides.

/// A parsed equation bound to shapes.
struct Equation {
  int operands = 0;
  std::array<int64_t, kLabels> size{}; ///< 0 where the label is not used.
  std::array<bool, kLabels> inOutput{};
  std::array<int, kLabels> uses{};
  /// Stride of each label in each operand and in the output, in elements. A label that repeats in one operand walks
  /// its diagonal: the strides add up.
  std::array<std::array<int64_t, kLabels>, kMaxOperands + 1> strides{};
  std::array<int, kMaxRank> output{}; ///< Labels of the output's dimensions.
  int outputRank = 0, ellipsisRank = 0;
  const char *error = nullptr;
};

/// The label of a letter; letters sort as in ASCII (capitals first), the order of an implicit output.
int labelOf(char c) {
  if (c >= 'A' && c <= 'Z')
    return c - 'A';
  return c >= 'a' && c <= 'z' ? 26 + c - 'a' : -1;
}

/// Calls dimension(label) for each label of the term, or ellipsis() for "...". False where the text is malformed.
template <typename OnLabel, typename OnEllipsis>
bool readTerm(std::string_view term, OnLabel &&onLabel, OnEllipsis &&onEllipsis) {
  bool seenEllipsis = false;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term[i] == ' ')
      continue;
    if (term.substr(i, 3) == "...") {
      if (seenEllipsis)
        return false;
      seenEllipsis = true;
      onEllipsis();
      i += 2;
      continue;
    }
    if (labelOf(term[i]) < 0)
      return false;
    onLabel(labelOf(term[i]));
  }
  return true;
}

bool bindOperand(std::string_view term, std::span<const int64_t> dims, Equation &e) {
  int named = 0, rank = static_cast<int>(dims.size());
  bool hasEllipsis = false;
  if (!readTerm(term, [&](int) { ++named; }, [&] { hasEllipsis = true; })) {
    e.error = "malformed equation";
    return false;
  }
  int hidden = rank - named;
  if (hidden < 0 || (hidden > 0 && !hasEllipsis)) {
    e.error = "a term whose labels do not match its operand's rank";
    return false;
  }
  e.ellipsisRank = std::max(e.ellipsisRank, hidden);
  IndexArray dense = denseStrides(dims);
  auto &strides = e.strides[e.operands];
  int d = 0;
  auto bind = [&](int label) {
    int64_t size = dims[d];
    if (e.size[label] > 1 && size > 1 && e.size[label] != size)
      e.error = "a label with two sizes";
    // Size 1 repeats, as in NumPy; a zero wins over 1.
    if (e.size[label] == 0 && e.uses[label] == 0)
      e.size[label] = size;
    else if (e.size[label] == 1)
      e.size[label] = size;
    ++e.uses[label];
    strides[label] += size == 1 ? 0 : dense[d];
    ++d;
  };
  readTerm(term, bind, [&] {
    for (int i = hidden; i-- > 0;)
      bind(52 + i);
  });
  ++e.operands;
  return !e.error;
}

void bindOutput(std::string_view equation, Equation &e) {
  auto push = [&](int label) {
    if (e.outputRank == kMaxRank || e.inOutput[label] || e.uses[label] == 0) {
      e.error = "an output label that repeats or is in no input";
      return;
    }
    e.inOutput[label] = true;
    e.output[e.outputRank++] = label;
  };
  auto pushEllipsis = [&] {
    for (int i = e.ellipsisRank; i-- > 0;)
      push(52 + i);
  };
  size_t arrow = equation.find("->");
  if (arrow != std::string_view::npos) {
    if (!readTerm(equation.substr(arrow + 2), push, pushEllipsis))
      e.error = "malformed equation";
  } else {
    pushEllipsis();
    for (int label = 0; label < 52; ++label)
      if (e.uses[label] == 1)
        push(label);
  }
  int64_t stride = 1;
  for (int d = e.outputRank; d-- > 0;) {
    e.strides[kOutput][e.output[d]] = stride;
    stride *= e.size[e.output[d]];
  }
}

Equation parse(const StepSpec &spec) {
  Equation e;
  std::string_view text = spec.attrs.stringView("equation", "");
  std::string_view left = text.substr(0, text.find("->"));
  size_t inputs = spec.inputs.size();
  if (inputs > kMaxOperands) {
    e.error = "more than 8 operands";
    return e;
  }
  for (size_t i = 0; i < inputs; ++i) {
    size_t comma = left.find(',');
    if ((comma == std::string_view::npos) != (i + 1 == inputs)) {
      e.error = "not as many terms as operands";
      return e;
    }
    if (!bindOperand(left.substr(0, comma), spec.inputs[i].dims, e))
      return e;
    left = comma == std::string_view::npos ? std::string_view() : left.substr(comma + 1);
  }
  bindOutput(text, e);
  return e;
}

/// Two operands (or one, times 1) are a matrix product with several indices in each role.
Contraction contractionOf(const Equation &e) {
  Contraction c;
  auto place = [&](int label) {
    ContractionAxis axis{e.size[label], e.strides[0][label], e.strides[1][label], e.strides[kOutput][label], 0};
    if (!e.inOutput[label])
      c.summed.push(axis);
    else if (axis.a && axis.b)
      c.batch.push(axis);
    else if (axis.b)
      c.columns.push(axis);
    else
      c.rows.push(axis);
  };
  // Innermost first: the output's last dimension varies fastest.
  for (int d = e.outputRank; d-- > 0;)
    place(e.output[d]);
  for (int label = kLabels; label-- > 0;)
    if (e.uses[label] && !e.inOutput[label])
      place(label);
  return c;
}

/// Any number of operands: one sum of products for each element of the output.
template <typename T> void sumProducts(const Equation &e, const KernelArgs &args) {
  using Acc = Accumulator<T>;
  std::array<int, kLabels> summed;
  int summedCount = 0;
  int64_t terms = 1, outputs = 1;
  for (int label = 0; label < kLabels; ++label)
    if (e.uses[label]) {
      (e.inOutput[label] ? outputs : terms) *= e.size[label];
      if (!e.inOutput[label])
        summed[summedCount++] = label;
    }
  parallelFor(outputs, grainFor(terms * e.operands), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      std::array<int64_t, kMaxOperands> base{};
      int64_t rest = o;
      for (int d = e.outputRank; d-- > 0; rest /= e.size[e.output[d]])
        for (int i = 0; i < e.operands; ++i)
          base[i] += rest % e.size[e.output[d]] * e.strides[i][e.output[d]];
      Acc sum = 0;
      for (int64_t t = 0; t < terms; ++t) {
        std::array<int64_t, kMaxOperands> at = base;
        int64_t left = t;
        for (int s = summedCount; s-- > 0; left /= e.size[summed[s]])
          for (int i = 0; i < e.operands; ++i)
            at[i] += left % e.size[summed[s]] * e.strides[i][summed[s]];
        Acc product = 1;
        for (int i = 0; i < e.operands; ++i)
          product *= static_cast<Acc>(load(args.inputs[i].as<T>()[at[i]]));
        sum += product;
      }
      args.outputs[0].as<T>()[o] = roundTo<T>(sum);
    }
  });
}

} // namespace

Status runEinsum(const StepSpec &spec, const KernelArgs &args) {
  Equation e = parse(spec);
  if (e.error)
    return stepError(spec, e.error);
  dispatchProduct(spec.outputs[0].dtype, [&]<typename T>() {
    if (e.operands > 2)
      return sumProducts<T>(e, args);
    T one = T(1);
    const T *second = e.operands == 2 ? args.inputs[1].as<T>() : &one;
    contract<T>(contractionOf(e), args.inputs[0].as<T>(), second, nullptr, args.outputs[0].as<T>());
  });
  return Status::success();
}

std::string refuseEinsum(const StepSpec &spec) {
  DType type = spec.outputs[0].dtype;
  if (!isProductType(type))
    return std::string(name(type)) + " is not supported";
  if (spec.inputs.empty())
    return "no operands";
  Equation e = parse(spec);
  if (e.error)
    return e.error;
  if (e.outputRank != spec.outputs[0].rank())
    return "an equation that does not give the output's rank";
  return "";
}

} // namespace recast::reference
