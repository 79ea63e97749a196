#include "ReferenceTest.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/reference/CounterRandom.h"

namespace recast::reference::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Op train(std::string name, Attributes attrs = {}) { return {std::move(name), 1, std::move(attrs), "recast"}; }
Array scalar(double value) { return f64({}, {value}); }

TEST(Train, ReduceToSumsTheBroadcastAxes) {
  Array dy = f32({2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  auto reduce = [&](std::vector<int64_t> dims, const Array &shape) {
    return run(train("reduce_to"), {dy, shape}, {{DType::F32, dims}})[0];
  };
  expectEqual(reduce({3, 1}, i64({2}, {3, 1})), {14, 22, 30});
  expectEqual(reduce({2}, i64({1}, {2})), {30, 36});
  expectEqual(reduce({2, 1, 2}, i64({3}, {2, 1, 2})), {6, 9, 24, 27});
  expectEqual(reduce({}, i64({0}, {})), {66});
  expectEqual(reduce({2, 3, 2}, i64({3}, {2, 3, 2})), dy.values());
}

TEST(Train, SoftmaxGradientsMatchFiniteDifferences) {
  Array x = randomArray(DType::F64, {3, 4, 2}, 1), dy = randomArray(DType::F64, {3, 4, 2}, 2);
  for (int64_t axis : {1, -1}) {
    Attributes attrs = attributes({{"axis", axis}});
    for (auto [forward, backward] :
         {std::pair("Softmax", "softmax_grad"), std::pair("LogSoftmax", "log_softmax_grad")}) {
      Array y = run({forward, 13, attrs}, {x}, {x.type})[0];
      auto dot = [&](const Array &at) {
        Array value = run({forward, 13, attrs}, {at}, {x.type})[0];
        double sum = 0;
        for (size_t i = 0; i < 24; ++i)
          sum += value.get(i) * dy.get(i);
        return sum;
      };
      std::vector<double> want;
      for (size_t i = 0; i < 24; ++i) {
        Array above = x, below = x;
        above.set(i, x.get(i) + 1e-5);
        below.set(i, x.get(i) - 1e-5);
        want.push_back((dot(above) - dot(below)) / 2e-5);
      }
      // Central differences in f64 with h = 1e-5 are good to about 1e-10.
      expectNear(run(train(backward, attrs), {dy, y}, {x.type})[0], want, 1e-8);
    }
  }
}

TEST(Train, ScalesAndUnscales) {
  Array scale = f32({}, {1024});
  expectEqual(run(train("scale_loss"), {f32({}, {0.75}), scale}, {{DType::F32, {}}})[0], {768});
  expectEqual(run(train("scale_loss"), {Array(DType::F16, {}, {100}), scale}, {{DType::F16, {}}})[0], {kInf});

  Array g0 = f32({3}, {1024, -512, 0}), g1 = {DType::F16, {2}, {2048, 1}};
  std::vector<TensorType> types = {{DType::F32, {3}}, {DType::F16, {2}}, {DType::Bool, {}}};
  auto out = run(train("unscale"), {g0, g1, scale}, types);
  expectEqual(out[0], {1, -0.5, 0});
  expectEqual(out[1], {2, 0x1p-10});
  expectEqual(out[2], {0});
  for (double bad : {kInf, -kInf, kNaN}) {
    g1.set(1, bad);
    expectEqual(run(train("unscale"), {g0, g1, scale}, types)[2], {1});
    expectEqual(run(train("check_finite"), {g0, g1}, {{DType::Bool, {}}})[0], {1});
  }
  // A scaled gradient that is finite counts as finite, however small the scale.
  Array large = f32({1}, {3e38});
  auto grown = run(train("unscale"), {large, f32({}, {0.5})}, {{DType::F32, {1}}, {DType::Bool, {}}});
  expectEqual(grown[0], {kInf});
  expectEqual(grown[1], {0});
  expectEqual(run(train("check_finite"), {g0}, {{DType::Bool, {}}})[0], {0});
}

TEST(Train, ClipsByNormAsTorch) {
  Array g0 = f32({2}, {3, 0}), g1 = f32({1, 1}, {-4});
  std::vector<TensorType> types = {g0.type, g1.type, {DType::F32, {}}};
  expectEqual(run(train("grad_norm"), {g0, g1}, {{DType::F32, {}}})[0], {5});
  auto out = run(train("clip_grad_norm"), {g0, g1, scalar(1)}, types);
  expectNear(out[0], {3 / 5.000001, 0}, 1e-7);
  expectNear(out[1], {-4 / 5.000001}, 1e-7);
  expectEqual(out[2], {5});
  out = run(train("clip_grad_norm"), {g0, g1, scalar(10)}, types);
  expectEqual(out[0], {3, 0});
  g1.set(0, kInf);
  out = run(train("clip_grad_norm"), {g0, g1, scalar(1)}, types);
  expectEqual(out[0], {0, 0});
  expectEqual(out[1], {kNaN});
  expectEqual(out[2], {kInf});
  g1.set(0, kNaN);
  expectEqual(run(train("clip_grad_norm"), {g0, g1, scalar(1)}, types)[0], {kNaN, kNaN});
  expectEqual(run(train("clip_grad_value"), {f32({4}, {-2, 0.25, 2, kNaN}), scalar(0.5)}, {{DType::F32, {4}}})[0],
              {-0.5, 0.25, 0.5, kNaN});
}

struct AdamCase {
  DType param, grad;
  double tolerance;
};

/// Three steps against the formula in double; the state is fed back through its own type.
TEST(Train, AdamFollowsTheFormula) {
  constexpr double lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.1;
  const AdamCase cases[] = {
      {DType::F64, DType::F64, 1e-14}, {DType::F32, DType::F32, 1e-6}, {DType::F32, DType::BF16, 1e-6}};
  for (const AdamCase &c : cases)
    for (const char *op : {"adamw", "adam"}) {
      SCOPED_TRACE(std::string(op) + " " + std::string(name(c.param)));
      bool decoupled = op == std::string("adamw");
      Array p = randomArray(c.param, {37}, 1), m(c.param, {37}), v(c.param, {37});
      std::vector<double> wantP = p.values(), wantM(37), wantV(37);
      for (int step = 1; step <= 3; ++step) {
        Array g = randomArray(c.grad, {37}, static_cast<uint64_t>(step) + 10);
        auto out = run(train(op),
                       {boolean({}, {0}), p, g, m, v, i64({}, {static_cast<double>(step)}), scalar(lr), scalar(beta1),
                        scalar(beta2), scalar(eps), scalar(decay)},
                       {p.type, p.type, p.type});
        for (size_t i = 0; i < 37; ++i) {
          double gi = g.get(i) + (decoupled ? 0 : decay * wantP[i]);
          wantP[i] *= decoupled ? 1 - lr * decay : 1;
          wantM[i] = beta1 * wantM[i] + (1 - beta1) * gi;
          wantV[i] = beta2 * wantV[i] + (1 - beta2) * gi * gi;
          wantP[i] -= lr / (1 - std::pow(beta1, step)) * wantM[i] /
                      (std::sqrt(wantV[i]) / std::sqrt(1 - std::pow(beta2, step)) + eps);
        }
        expectNear(out[0], wantP, c.tolerance);
        expectNear(out[1], wantM, c.tolerance);
        expectNear(out[2], wantV, c.tolerance);
        p = out[0], m = out[1], v = out[2];
      }
      // A skipped step keeps every bit, even with a gradient that would spoil them.
      Array bad(c.grad, {37}, std::vector<double>(37, kNaN));
      auto kept = run(train(op),
                      {boolean({}, {1}), p, bad, m, v, i64({}, {4}), scalar(lr), scalar(beta1), scalar(beta2),
                       scalar(eps), scalar(decay)},
                      {p.type, p.type, p.type});
      EXPECT_EQ(kept[0].bytes, p.bytes);
      EXPECT_EQ(kept[1].bytes, m.bytes);
      EXPECT_EQ(kept[2].bytes, v.bytes);
    }
}

TEST(Train, SgdFollowsTheFormula) {
  constexpr double lr = 0.1, momentum = 0.9, dampening = 0.25, decay = 0.01;
  for (int64_t nesterov : {0, 1}) {
    Array p = randomArray(DType::F64, {33}, 1), buffer(DType::F64, {33}, std::vector<double>(33, kNaN));
    std::vector<double> wantP = p.values(), wantB(33);
    for (int step = 1; step <= 3; ++step) {
      Array g = randomArray(DType::F64, {33}, static_cast<uint64_t>(step) + 20);
      auto out = run(train("sgd", attributes({{"nesterov", nesterov}})),
                     {boolean({}, {0}), p, g, buffer, i64({}, {static_cast<double>(step)}), scalar(lr),
                      scalar(momentum), scalar(dampening), scalar(decay)},
                     {p.type, p.type});
      for (size_t i = 0; i < 33; ++i) {
        double gi = g.get(i) + decay * wantP[i];
        wantB[i] = step == 1 ? gi : momentum * wantB[i] + (1 - dampening) * gi;
        wantP[i] -= lr * (nesterov ? gi + momentum * wantB[i] : wantB[i]);
      }
      expectNear(out[0], wantP, 1e-14);
      expectNear(out[1], wantB, 1e-14);
      p = out[0], buffer = out[1];
    }
  }
  auto plain = run(train("sgd"),
                   {boolean({}, {0}), f32({2}, {1, 2}), f32({2}, {4, -4}), Array(), i64({}, {5}), scalar(0.25),
                    scalar(0), scalar(0), scalar(0)},
                   {{DType::F32, {2}}});
  expectEqual(plain[0], {0, 3});
}

TEST(Train, OptimizersRefuseStateOfAnotherType) {
  Array p = f32({1}, {1}), g = f32({1}, {1}), v = f64({1}, {1});
  EXPECT_EQ(
      refusalOf(train("adamw"),
                {boolean({}, {0}), p, g, p, v, i64({}, {1}), scalar(1), scalar(0), scalar(0), scalar(0), scalar(0)},
                {p.type, p.type, p.type}),
      "state of f64 for a parameter of f32");
}

struct ScaleCase {
  const char *name;
  double init, growth, backoff, interval, min, max;
  std::vector<int> foundInf;
  std::vector<double> scales; ///< After each step.
};

// Sequences of torch's GradScaler kernel, with ONNX Runtime's bounds.
TEST(Train, LossScaleSequences) {
  const ScaleCase cases[] = {
      {"interval exactly reached",
       65536,
       2,
       0.5,
       3,
       0,
       kInf,
       {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0},
       {65536, 65536, 131072, 131072, 131072, 65536, 65536, 65536, 131072, 131072, 131072, 262144}},
      {"low bound",
       16,
       2,
       0.5,
       5,
       1,
       0x1p24,
       {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
       {8, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 4, 4}},
      {"high bound",
       0x1p22,
       2,
       0.5,
       2,
       1,
       0x1p24,
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0},
       {0x1p22, 0x1p23, 0x1p23, 0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p23, 0x1p23,
        0x1p24}},
      {"stops before infinity",
       0x1p120,
       2,
       0.5,
       1,
       0,
       kInf,
       {0, 0, 0, 0, 0, 0, 0, 0, 0},
       {0x1p121, 0x1p122, 0x1p123, 0x1p124, 0x1p125, 0x1p126, 0x1p127, 0x1p127, 0x1p127}},
      {"odd factors",
       65536,
       1.7,
       0.3,
       2,
       0,
       kInf,
       {0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
       {0x1p16,        0x1.b33334p16, 0x1.b33334p16, 0x1.051eb8p15, 0x1.051eb8p15, 0x1.bbe76cp15,
        0x1.bbe76cp15, 0x1.0a57a8p14, 0x1.0a57a8p14, 0x1.c4c838p14, 0x1.c4c838p14, 0x1.80dd62p15,
        0x1.80dd62p15, 0x1.472294p16, 0x1.472294p16, 0x1.161098p17, 0x1.161098p17, 0x1.d8b5dp17,
        0x1.d8b5dp17,  0x1.91cdbep18, 0x1.91cdbep18, 0x1.55887cp19, 0x1.55887cp19, 0x1.224d9cp20}},
  };
  for (const ScaleCase &c : cases) {
    SCOPED_TRACE(c.name);
    Array scale = f32({}, {c.init}), good = i64({}, {0});
    std::vector<double> scales;
    for (int found : c.foundInf) {
      auto out = run(train("update_loss_scale"),
                     {boolean({}, {static_cast<double>(found)}), scale, good, scalar(c.growth), scalar(c.backoff),
                      i64({}, {c.interval}), f32({}, {c.min}), f32({}, {c.max})},
                     {scale.type, good.type});
      scale = out[0], good = out[1];
      scales.push_back(scale.get(0));
    }
    EXPECT_EQ(scales, c.scales);
  }
  // Backing off from 65536 for ever ends at 0, through the subnormal numbers.
  Array scale = f32({}, {65536}), good = i64({}, {3});
  for (int i = 0; i < 170; ++i)
    scale = run(train("update_loss_scale"),
                {boolean({}, {1}), scale, good, scalar(2), scalar(0.5), i64({}, {5}), f32({}, {0}), f32({}, {kInf})},
                {scale.type, good.type})[0];
  expectEqual(scale, {0});
}

TEST(Train, KeepIfAndBarrierCopy) {
  Array old = i64({2}, {1, 2}), next = i64({2}, {3, 4});
  expectEqual(run(train("keep_if"), {boolean({}, {1}), old, next}, {old.type})[0], {1, 2});
  expectEqual(run(train("keep_if"), {boolean({}, {0}), old, next}, {old.type})[0], {3, 4});
  auto out = run(train("barrier"), {old, f32({1}, {0.5})}, {old.type, {DType::F32, {1}}});
  expectEqual(out[0], {1, 2});
  expectEqual(out[1], {0.5});
}

TEST(Train, DropoutMaskIsTheSquaresGenerator) {
  // From an independent implementation in Python.
  uint64_t key = squaresKey(7);
  EXPECT_EQ(squaresKey(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(key, 0x63cbe1e459320dd7u);
  const uint32_t want[] = {190613913, 3685055741, 249733728, 803577939, 2357581571, 1519102452, 1565080331, 889155124};
  for (uint64_t i = 0; i < 8; ++i)
    EXPECT_EQ(squares32((uint64_t(3) << 40) + i, key), want[i]);
  Array shape = i64({2}, {2, 8}), rng = i64({}, {7});
  Op op = train("dropout_mask", attributes({{"offset", int64_t(3)}}));
  expectEqual(run(op, {rng, shape, scalar(0.5)}, {{DType::Bool, {2, 8}}})[0],
              {0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1});
  expectEqual(run(op, {rng, shape, scalar(0)}, {{DType::Bool, {2, 8}}})[0], std::vector<double>(16, 1));
  expectEqual(run(op, {rng, shape, scalar(1)}, {{DType::Bool, {2, 8}}})[0], std::vector<double>(16, 0));
}

TEST(Train, RandomUniformIsTheUpperBitsOfTheGenerator) {
  Op op = train("random_uniform", attributes({{"offset", int64_t(3)}}));
  Array u = run(op, {i64({}, {7}), i64({2}, {2, 4})}, {{DType::F32, {2, 4}}})[0];
  const uint32_t bits[] = {190613913, 3685055741, 249733728, 803577939, 2357581571, 1519102452, 1565080331, 889155124};
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(u.get(i), (bits[i] >> 8) * 0x1p-24);
  EXPECT_EQ(uniform24(0), 0);
  EXPECT_EQ(uniform24(0xffffffff), 1 - 0x1p-24f);
}

TEST(Train, RoundsToTf32) {
  const double ulp = 0x1p-10, half = ulp / 2; // of numbers in [1, 2)
  Array x = f32({10}, {1 + half, 1 + ulp + half, 1 + half + 0x1p-23, -(1 + half), 2 - 0x1p-23, 0x1.fffffep+127, -kInf,
                       0x1p-136, 0x1.8p-136, 0x1p-137});
  // Ties to even; carries into the exponent, up to infinity; below the normal range the step is 2^-136.
  expectEqual(run(train("round_tf32"), {x}, {x.type})[0],
              {1, 1 + 2 * ulp, 1 + ulp, -1, 2, kInf, -kInf, 0x1p-136, 0x1p-135, 0});
  EXPECT_TRUE(std::isnan(run(train("round_tf32"), {f32({}, {kNaN})}, {{DType::F32, {}}})[0].get(0)));
}

TEST(Train, ThreadsDoNotChangeResults) {
  int threads = threadCount();
  Array g0 = randomArray(DType::F32, {301, 333}, 3), g1 = randomArray(DType::BF16, {77777}, 4);
  std::vector<std::vector<std::byte>> results[2];
  for (int count : {1, 2}) {
    setThreadCount(count);
    auto &to = results[count - 1];
    for (const Array &array : run(train("clip_grad_norm"), {g0, g1, scalar(1)}, {g0.type, g1.type, {DType::F32, {}}}))
      to.push_back(array.bytes);
    to.push_back(run(train("reduce_to"), {g0, i64({1}, {333})}, {{DType::F32, {333}}})[0].bytes);
    to.push_back(
        run(train("dropout_mask"), {i64({}, {1}), i64({1}, {77777}), scalar(0.1)}, {{DType::Bool, {77777}}})[0].bytes);
    auto updated = run(train("adamw"),
                       {boolean({}, {0}), g0, g0, g0, g0, i64({}, {1}), scalar(0.1), scalar(0.9), scalar(0.99),
                        scalar(1e-8), scalar(0.1)},
                       {g0.type, g0.type, g0.type});
    to.push_back(updated[0].bytes);
  }
  setThreadCount(threads);
  EXPECT_EQ(results[0], results[1]);
}

} // namespace
} // namespace recast::reference::test
