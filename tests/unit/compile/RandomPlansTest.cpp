// Random graphs with views, states, branches and loops: a plan that works in place gives what one gives that does not.
#include "tests/unit/compile/CompileTest.h"
#include <random>

namespace recast::test {
namespace {

constexpr int kStates = 3;

/// Writes one graph as text. Every value has 24 elements, so that every one of them may become any state, in one of
/// three shapes; or 6, to be broadcast.
class Generator {
public:
  explicit Generator(uint64_t seed) : random(seed) {}

  std::string graph() {
    std::string header, state, body;
    for (int i = 0; i < kStates; ++i) {
      std::string name = "s" + std::to_string(i);
      header += ", float[4,6] " + name + " = {" + numbers(24) + "}";
      state += std::string(i ? ", " : "") + "\\\"" + name + "\\\": \\\"" + name + "_next\\\"";
      values[0].push_back(name);
    }
    values[0].push_back("x");
    body = "  tall = Reshape(x, d1)\n  flat = Reshape(s0, d2)\n";
    values[1].push_back("tall");
    values[2].push_back("flat");
    for (int count = 5 + below(25); count > 0; --count)
      body += node();
    std::string outputs;
    for (int i = 0; i < kStates; ++i) {
      body += "  s" + std::to_string(i) + "_next = Identity(" + any(0) + ")\n";
      outputs += "float[4,6] s" + std::to_string(i) + "_next, ";
    }
    for (int i = 0; i < 3; ++i) {
      int shape = below(kShapes);
      body += "  out" + std::to_string(i) + " = Identity(" + any(shape) + ")\n";
      outputs += (i ? ", float" : "float") + std::string(kDims[shape]) + " out" + std::to_string(i);
    }
    return "<ir_version: 8, opset_import: [\"\" : 18], metadata_props: [\"recast.state\" : \"{" + state + "}\"]>\n" +
           "g (float[4,6] x, bool c, int64[1] at" + header + ") => (" + outputs + ")\n" +
           "<int64[2] d0 = {4, 6}, int64[2] d1 = {6, 4}, int64[1] d2 = {24}, int64[1] zeros = {0}>\n{\n" + body + "}";
  }

private:
  static constexpr int kShapes = 3;
  static constexpr const char *kDims[kShapes] = {"[4,6]", "[6,4]", "[24]"};

  int below(int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }
  std::string fresh() { return "v" + std::to_string(next++); }
  std::string numbers(int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += (i ? ", " : "") + std::to_string(below(200) - 100) + "e-2";
    return text;
  }
  /// Mostly a recent value.
  std::string any(int shape) {
    auto &list = values[shape];
    int size = static_cast<int>(list.size());
    return list[static_cast<size_t>(below(3) ? std::max(0, size - 1 - below(4)) : below(size))];
  }

  std::string node() {
    int shape = below(kShapes);
    std::string a = any(shape), b = any(shape), name = fresh(), text;
    auto define = [&](const std::string &right) { text = "  " + name + " = " + right + "\n"; };
    int to = shape;
    switch (below(12)) {
    case 0:
    case 1:
      to = below(kShapes);
      define("Reshape(" + a + ", d" + std::to_string(to) + ")");
      break;
    case 2:
      define("Softmax(" + a + ")");
      break;
    case 3:
      define("Neg(" + a + ")");
      break;
    case 4:
      define("Where(c, " + a + ", " + b + ")");
      break;
    case 5:
      define("Sum(" + a + ", " + b + ", " + any(shape) + ")");
      break;
    case 6:
      to = 0;
      define("Transpose(" + any(1) + ")");
      break;
    case 7: // A row is broadcast; looking it up may fail.
      to = 0;
      text = "  " + name + "r = Gather(" + any(0) + ", at)\n  " + name + " = Mul(" + any(0) + ", " + name + "r)\n";
      break;
    case 8: {
      std::string t = fresh(), e = fresh();
      define("If (c) <then_branch = " + t + "g () => (float" + kDims[shape] + " " + t + ") { " + t + "a = Tanh(" + a +
             ")  " + t + " = Mul(" + t + "a, " + b + ") }, else_branch = " + e + "g () => (float" + kDims[shape] + " " +
             e + ") { " + e + " = Identity(" + b + ") }>");
      break;
    }
    case 9: {
      // The first state becomes the second one; a slice is added to what both were.
      std::string p = fresh(), q = fresh(), second = name + "b", sums = name + "c", start = name + "z";
      to = 0;
      text = "  " + start + " = ReduceSum <keepdims = 0> (" + any(0) + ", zeros)\n  " + name + "s, " + second + ", " +
             sums + " = Scan <num_scan_inputs = 1, body = " + p + "g (float[6] " + p + ", float[6] " + q +
             ", float[6] " + p + "x) => (float[6] " + p + "n, float[6] " + q + "n, float[6] " + p + "u) { " + p +
             "m = Tanh(" + p + ")  " + p + "n = Add(" + p + "m, " + p + "x)  " + q +
             "n = " + (below(2) ? "Identity(" : "Neg(") + p + ")  " + p + "u = Sub(" + p + "n, " + q + ") }> (" +
             start + ", " + (below(2) ? start : name + "y") + ", " + any(0) + ")\n  " + name + " = Mul(" + sums + ", " +
             second + ")\n";
      text = "  " + name + "y = ReduceMax <keepdims = 0> (" + any(0) + ", zeros)\n" + text;
      break;
    }
    default:
      define((below(2) ? "Add(" : "Mul(") + a + ", " + b + ")");
    }
    values[to].push_back(name);
    return text;
  }

  std::mt19937_64 random;
  int next = 0;
  std::vector<std::string> values[kShapes];
};

TEST(RandomPlans, AreTheSameInPlace) {
  size_t smaller = 0, inState = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::string text = Generator(seed).graph();
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    Program program(text), apart(text, {.inPlace = false});
    ASSERT_TRUE(program && apart);
    EXPECT_LE(program.plan->arenaBytes, apart.plan->arenaBytes);
    EXPECT_EQ(program.executor->arenaBytes(), program.plan->arenaBytes);
    smaller += program.plan->arenaBytes < apart.plan->arenaBytes;
    for (const Output &output : program.plan->outputs)
      inState += output.updates >= 0 && program.plan->rootOf(output.buffer) == output.updates;
    for (int step = 0; step < 4; ++step) {
      bool fails = step == 2; // Where the graph looks up a row, there is none of that number.
      for (Program *each : {&program, &apart}) {
        std::vector<float> x(24);
        for (size_t i = 0; i < x.size(); ++i)
          x[i] = static_cast<float>(i) / 12 - 1 + static_cast<float>(step) / 8;
        each->set<float>("x", x);
        *each->executor->tensor(each->executor->find("c")).as<bool>() = step % 2;
        each->set<int64_t>("at", {fails ? 4 : step % 4});
      }
      Status status = program.executor->run(), other = apart.executor->run();
      ASSERT_EQ(status.ok(), other.ok());
      std::vector<std::string> names = {"s0", "s1", "s2"};
      if (status.ok())
        names.insert(names.end(), {"s0_next", "s1_next", "s2_next", "out0", "out1", "out2"});
      for (const std::string &name : names) {
        TensorRef a = program.executor->tensor(program.executor->find(name)),
                  b = apart.executor->tensor(apart.executor->find(name));
        ASSERT_EQ(a.bytes(), b.bytes());
        ASSERT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << name << " after step " << step << "\n"
                                                             << print(*program.plan);
      }
    }
  }
  // The graphs are such that both happens often.
  EXPECT_GT(smaller, 150u);
  EXPECT_GT(inState, 150u);
}

} // namespace
} // namespace recast::test
