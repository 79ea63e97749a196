// Random graphs: generated steps give what the reference evaluator gives. How far both may be apart follows from the
// stated errors of the functions and the graph, operator by operator; where an operator has no rounding of its own, or
// both round alike, the bits are equal.
#include "runtime/fusion/MathFunctions.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/kernels/cpu/Generated.h"
#include "tests/unit/compile/CompileTest.h"
#include <cmath>
#include <random>

namespace recast::test {
namespace {

struct TypeInfo {
  DType type;
  const char *name;
  double unit; ///< An ulp at 1; 0: exact.
};
constexpr TypeInfo kF32{DType::F32, "float", 0x1p-23}, kBF16{DType::BF16, "bfloat16", 0x1p-7},
    kF16{DType::F16, "float16", 0x1p-10}, kBool{DType::Bool, "bool", 0}, kI32{DType::I32, "int32", 0},
    kI64{DType::I64, "int64", 0};

struct Known {
  std::string name;
  std::vector<int64_t> dims;
  TypeInfo type;
  double size;  ///< No element is larger.
  double error; ///< By which two evaluations may differ.
};

class Generator {
public:
  explicit Generator(uint64_t seed) : random(seed) {
    static constexpr int64_t kSizes[] = {1, 2, 3, 5, 7, 16, 17, 33, 64, 100};
    for (size_t rank = 1 + below(3); base.size() < rank;)
      base.push_back(kSizes[below(std::size(kSizes))]);
    if (below(40) == 0)
      base[below(base.size())] = 0;
  }

  std::string graph() {
    for (const TypeInfo &type : {kF32, kF32, kBF16, kF16, kBool, kI32, kI64}) {
      inputs.push_back({fresh(), below(3) ? base : smaller(), type, 1, 0});
      known.push_back(inputs.back());
    }
    known.push_back({fresh(), smaller(), kF32, 1, 0});
    inputs.push_back(known.back());
    for (size_t count = 4 + below(16); count > 0; --count)
      node();
    std::string header, results;
    for (const Known &input : inputs)
      header += (header.empty() ? "" : ", ") + typed(input);
    for (size_t i = inputs.size(); i < known.size(); ++i)
      if (i + 3 >= known.size() || below(4) == 0) {
        outputs.push_back(known[i]);
        results += (results.empty() ? "" : ", ") + typed(known[i]);
      }
    return "<ir_version: 10, opset_import: [\"\" : 20]>\ng (" + header + ") => (" + results + ")\n" +
           (constants.empty() ? "" : "<" + constants + ">") + "\n{\n" + body + "}";
  }

  std::vector<Known> inputs, outputs;

private:
  size_t below(size_t n) { return random() % n; }
  std::string fresh() { return "v" + std::to_string(next++); }
  static std::string text(const std::vector<int64_t> &dims) {
    std::string result;
    for (int64_t size : dims)
      result += (result.empty() ? "" : ",") + std::to_string(size);
    return "[" + result + "]";
  }
  static std::string typed(const Known &value) { return value.type.name + text(value.dims) + " " + value.name; }
  /// Dims that broadcast to the base.
  std::vector<int64_t> smaller() {
    std::vector<int64_t> dims(base.begin() + static_cast<int64_t>(below(base.size())), base.end());
    for (int64_t &size : dims)
      size = below(2) ? size : 1;
    return dims;
  }
  static std::vector<int64_t> joined(std::vector<int64_t> a, std::vector<int64_t> b) {
    if (a.size() < b.size())
      std::swap(a, b);
    for (size_t i = 0; i < b.size(); ++i)
      if (int64_t &size = a[a.size() - b.size() + i]; size == 1)
        size = b[i];
    return a;
  }
  static bool fits(const std::vector<int64_t> &a, const std::vector<int64_t> &b) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      int64_t x = a[a.size() - 1 - i], y = b[b.size() - 1 - i];
      if (x != y && x != 1 && y != 1)
        return false;
    }
    return true;
  }
  static bool isFloatType(const Known &value) { return value.type.unit > 0; }

  /// A value, mostly a recent one, of which `allows` is true; null where there is none.
  template <typename Allows> const Known *any(Allows allows) {
    std::vector<const Known *> found;
    for (const Known &value : known)
      if (allows(value))
        found.push_back(&value);
    if (found.empty())
      return nullptr;
    size_t from = below(2) && found.size() > 4 ? found.size() - 4 : 0;
    return found[from + below(found.size() - from)];
  }
  void define(const std::string &right, std::vector<int64_t> dims, TypeInfo type, double size, double error) {
    known.push_back({fresh(), std::move(dims), type, size, error});
    body += "  " + known.back().name + " = " + right + "\n";
  }
  std::string ints(const std::vector<int64_t> &values) {
    std::string list, name = fresh();
    for (int64_t value : values)
      list += (list.empty() ? "" : ", ") + std::to_string(value);
    constants += (constants.empty() ? "" : ", ") + ("int64[" + std::to_string(values.size()) + "] " + name + " = {") +
                 list + "}";
    return name;
  }
  /// Of an operator that rounds: none where both sides compute it from equal operands in the same way.
  static double rounding(const Known &x, double size, double own) { return own > 0 ? size * x.type.unit : 0; }

  void node() {
    switch (below(8)) {
    case 0:
    case 1:
      return unary();
    case 2:
    case 3:
      return binary();
    case 4:
      return reduce();
    case 5:
      return row();
    case 6:
      return choose();
    default:
      return move();
    }
  }

  void unary() {
    const Known *x = any([](const Known &v) { return isFloatType(v); });
    struct Form {
      const char *op;
      double slope, ulps, most; ///< Of the derivative; of the function; of the result.
    };
    static constexpr Form kForms[] = {
        {"Tanh", 1, 5, 1},    {"Erf", 1.13, 2, 1},   {"Sin", 1, 1, 1},         {"Cos", 1, 1, 1},
        {"Sigmoid", 1, 3, 1}, {"Softsign", 1, 2, 1}, {"HardSigmoid", 1, 2, 1},
    };
    if (below(3)) {
      const Form &form = kForms[below(std::size(kForms))];
      double unit = x->type.unit + 0x1p-23;
      return define(std::string(form.op) + "(" + x->name + ")", x->dims, x->type, form.most,
                    x->error * form.slope + form.ulps * unit);
    }
    static constexpr const char *kExact[] = {"Neg", "Abs", "Relu"};
    static constexpr const char *kGrowing[] = {"Elu", "Gelu", "Softplus", "HardSwish", "Mish", "Selu"};
    if (below(2))
      return define(std::string(kExact[below(3)]) + "(" + x->name + ")", x->dims, x->type, x->size, x->error);
    if (below(5) == 0)
      return power(*x);
    // |f'| <= 2 and |f| <= 2 |x| + 2; some ten roundings in f32, one in the type.
    double size = 2 * x->size + 2;
    define(std::string(kGrowing[below(std::size(kGrowing))]) + "(" + x->name + ")", x->dims, x->type, size,
           2 * x->error + size * (10 * 0x1p-23 + x->type.unit));
  }

  /// |x|^1.5, whose slope is 1.5 |x|^0.5: both round to f32 with an error of less than a unit, and to the type.
  void power(Known x) {
    define("Abs(" + x.name + ")", x.dims, x.type, x.size, x.error);
    std::string base = known.back().name, exponent = fresh();
    constants += (constants.empty() ? "" : ", ") + ("float " + exponent + " = {1.5}");
    double size = std::pow(x.size, 1.5);
    define("Pow(" + base + ", " + exponent + ")", x.dims, x.type, size,
           1.5 * std::sqrt(x.size) * x.error + size * (2 * 0x1p-23 + x.type.unit));
  }

  void binary() {
    const Known *x = any([](const Known &v) { return v.type.type != DType::Bool && v.size < 1e3; });
    const Known *y =
        any([&](const Known &v) { return v.type.type == x->type.type && fits(v.dims, x->dims) && v.size < 1e3; });
    std::vector<int64_t> dims = joined(x->dims, y->dims);
    double own = x->error + y->error;
    switch (below(4)) {
    case 0:
      return define("Add(" + x->name + ", " + y->name + ")", dims, x->type, x->size + y->size,
                    own + rounding(*x, x->size + y->size, own));
    case 1:
      return define("Sub(" + x->name + ", " + y->name + ")", dims, x->type, x->size + y->size,
                    own + rounding(*x, x->size + y->size, own));
    case 2: {
      double error = x->error * (y->size + y->error) + y->error * x->size;
      return define("Mul(" + x->name + ", " + y->name + ")", dims, x->type, x->size * y->size,
                    error + rounding(*x, x->size * y->size, own));
    }
    default:
      return define((below(2) ? "Max(" : "Min(") + x->name + ", " + y->name + ")", dims, x->type,
                    std::max(x->size, y->size), std::max(x->error, y->error));
    }
  }

  void reduce() {
    const Known *x = any([](const Known &v) { return v.type.type != DType::Bool && !v.dims.empty() && v.size < 1e3; });
    std::vector<int64_t> axes, dims;
    bool keep = below(2);
    double count = 1;
    // Leading, trailing, all, or any axes.
    size_t rank = x->dims.size(), kind = below(4), cut = below(rank + 1);
    for (size_t d = 0; d < rank; ++d) {
      bool isReduced = kind == 0 ? d < cut : kind == 1 ? d >= cut : kind == 2 || below(2);
      if (isReduced) {
        axes.push_back(static_cast<int64_t>(d) - (below(2) ? static_cast<int64_t>(rank) : 0));
        count *= static_cast<double>(x->dims[d]);
      }
      if (!isReduced || keep)
        dims.push_back(isReduced ? 1 : x->dims[d]);
    }
    if (axes.empty() || count == 0)
      return;
    std::string args = "<keepdims = " + std::to_string(int(keep)) + ">(" + x->name + ", " + ints(axes) + ")";
    // Both sum in f64, in orders of their own, and round once.
    double unit = x->type.unit;
    switch (below(isFloatType(*x) ? 6 : 2)) {
    case 0:
      return define("ReduceMax " + args, dims, x->type, x->size, x->error);
    case 1:
      return define("ReduceSum " + args, dims, x->type, x->size * count, x->error * count + x->size * count * unit);
    case 2:
      return define("ReduceMean " + args, dims, x->type, x->size, x->error + x->size * unit);
    case 3:
      return define("ReduceSumSquare " + args, dims, x->type, x->size * x->size * count,
                    (2 * x->error * x->size + x->size * x->size * unit) * count);
    case 4:
      if (x->size <= 1)
        return define("ReduceProd " + args, dims, x->type, 1, x->error * count + unit);
      [[fallthrough]];
    default:
      return define("ReduceMin " + args, dims, x->type, x->size, x->error);
    }
  }

  void row() {
    const Known *x = any([](const Known &v) { return isFloatType(v) && !v.dims.empty() && v.size <= 16; });
    double unit = x->type.unit, columns = static_cast<double>(x->dims.back());
    switch (below(4)) {
    case 0:
      return define("Softmax <axis = -1>(" + x->name + ")", x->dims, x->type, 1, 2 * x->error + 0x1p-19 + unit);
    case 1:
      return define("LogSoftmax <axis = -1>(" + x->name + ")", x->dims, x->type, 2 * x->size + std::log(columns + 1),
                    2 * x->error + (2 * x->size + std::log(columns + 1)) * (0x1p-20 + unit));
    default: {
      // With epsilon 1 no derivative exceeds 2; then a factor and a summand of at most 1.
      const Known *scale = any([&](const Known &v) {
        return v.type.type == x->type.type && v.dims.size() == 1 && v.dims[0] == x->dims.back() && v.size <= 1;
      });
      if (!scale)
        return;
      double size = std::sqrt(columns) + 1;
      return define(
          "LayerNormalization <axis = -1, epsilon = 1.0>(" + x->name + ", " + scale->name + ", " + scale->name + ")",
          x->dims, x->type, size, 2 * std::sqrt(columns) * x->error + scale->error * size + size * (0x1p-19 + unit));
    }
    }
  }

  void choose() {
    // A difference of roundings must not choose another branch.
    const Known *a = any([](const Known &v) { return v.error == 0 && v.type.type != DType::Bool; });
    const Known *b =
        any([&](const Known &v) { return v.error == 0 && v.type.type == a->type.type && fits(v.dims, a->dims); });
    static constexpr const char *kCompare[] = {"Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"};
    std::vector<int64_t> dims = joined(a->dims, b->dims);
    define(std::string(kCompare[below(5)]) + "(" + a->name + ", " + b->name + ")", dims, kBool, 1, 0);
    std::string condition = known.back().name;
    if (below(3) == 0) {
      define("Not(" + condition + ")", dims, kBool, 1, 0);
      condition = known.back().name;
    }
    const Known *x = any([&](const Known &v) { return fits(v.dims, dims); });
    const Known *y =
        any([&](const Known &v) { return v.type.type == x->type.type && fits(v.dims, dims) && fits(v.dims, x->dims); });
    define("Where(" + condition + ", " + x->name + ", " + y->name + ")", joined(dims, joined(x->dims, y->dims)),
           x->type, std::max(x->size, y->size), std::max(x->error, y->error));
  }

  void move() {
    if (below(2)) {
      const Known *x = any([](const Known &v) { return v.size < 1e3; });
      std::vector<int64_t> dims = x->dims;
      if (dims.size() > 1 && below(2)) { // The first two axes become one.
        dims[1] *= dims[0];
        dims.erase(dims.begin());
      } else {
        dims.insert(dims.begin() + static_cast<int64_t>(below(dims.size() + 1)), 1);
      }
      return define("Reshape(" + x->name + ", " + ints(dims) + ")", dims, x->type, x->size, x->error);
    }
    static constexpr TypeInfo kTypes[] = {kF32, kBF16, kF16, kI32, kI64, kBool};
    const TypeInfo &to = kTypes[below(std::size(kTypes))];
    // Whole numbers and bits jump where floats differ.
    const Known *x = any([&](const Known &v) { return (to.unit > 0 || v.error == 0) && v.size < 1e3; });
    static constexpr int kNumbers[] = {1, 16, 10, 6, 7, 9};
    double error = x->error > 0 ? x->error + x->size * to.unit : 0;
    define("Cast <to = " + std::to_string(kNumbers[&to - kTypes]) + ">(" + x->name + ")", x->dims, to,
           to.type == DType::Bool ? 1 : x->size, error);
  }

  std::mt19937_64 random;
  std::vector<int64_t> base;
  std::vector<Known> known;
  std::string body, constants;
  int next = 0;
};

double element(const TensorRef &tensor, int64_t i) {
  return dispatchAny(tensor.dtype, [&]<typename T>() {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      return static_cast<double>(static_cast<float>(tensor.as<T>()[i]));
    else
      return static_cast<double>(tensor.as<T>()[i]);
  });
}

void fill(Program &program, const std::vector<Known> &inputs, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const Known &input : inputs) {
    int found = program.executor->find(input.name);
    if (found < 0)
      continue;
    TensorRef tensor = program.executor->tensor(found);
    for (int64_t i = 0; i < tensor.elems(); ++i) {
      auto number = static_cast<double>(static_cast<int64_t>(random() % 2001) - 1000) / 1000;
      dispatchAny(tensor.dtype, [&]<typename T>() {
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
          tensor.as<T>()[i] = static_cast<T>(number < 0 ? -1 : 1);
        else if constexpr (std::is_same_v<T, bool>)
          tensor.as<T>()[i] = number < 0;
        else
          tensor.as<T>()[i] = T(static_cast<float>(number));
      });
    }
  }
}

std::vector<std::string> bytesOf(Program &program) {
  std::vector<std::string> all;
  for (const Output &output : program.plan->outputs) {
    TensorRef tensor = program.executor->tensor(output.buffer);
    all.emplace_back(static_cast<const char *>(tensor.data), tensor.bytes());
  }
  return all;
}

class RandomRegionsTest : public testing::TestWithParam<int> {};

TEST_P(RandomRegionsTest, EqualTheReference) {
  int regions = 0, operators = 0;
  for (uint64_t seed = static_cast<uint64_t>(GetParam()) * 1000; seed < static_cast<uint64_t>(GetParam()) * 1000 + 12;
       ++seed) {
    Generator generator(seed);
    std::string text = generator.graph();
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    setThreadCount(1);
    Program reference(text, {.referenceOnly = true});
    Program fused(text, {.regions = true, .regionElems = 0});
    Program single(text, {.regions = true, .regionElems = 0, .fuseRegions = false});
    if (!reference || !fused || !single)
      return;
    for (const Step &step : fused.plan->steps) {
      regions += step.library == kGeneratedLibrary;
      operators += static_cast<int>(step.spec.attrs.getStrings("operators").size());
    }
    for (Program *program : {&reference, &fused, &single}) {
      fill(*program, generator.inputs, seed);
      program->run();
    }
    for (size_t k = 0; k < generator.outputs.size(); ++k) {
      const Known &known = generator.outputs[k];
      TensorRef expected = reference.executor->tensor(reference.plan->outputs[k].buffer);
      TensorRef actual = fused.executor->tensor(fused.plan->outputs[k].buffer);
      for (int64_t i = 0; i < expected.elems(); ++i) {
        double difference = std::fabs(element(actual, i) - element(expected, i));
        ASSERT_LE(difference, known.error)
            << known.name << "[" << i << "]: " << element(actual, i) << " instead of " << element(expected, i);
      }
    }
    // What is fused with what, and how many threads there are, changes no bit.
    EXPECT_EQ(bytesOf(fused), bytesOf(single));
    std::vector<std::string> first = bytesOf(fused);
    setThreadCount(2);
    fill(fused, generator.inputs, seed);
    fused.run();
    EXPECT_EQ(bytesOf(fused), first);
    if (HasFailure())
      return;
  }
  EXPECT_GT(regions, 0);
  EXPECT_GT(operators, regions);
}

INSTANTIATE_TEST_SUITE_P(Graphs, RandomRegionsTest, testing::Range(0, 10));

} // namespace
} // namespace recast::test
