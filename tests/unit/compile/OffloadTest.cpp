// Values in the host's memory: where the plan puts them, what it refuses, and that nothing changes but the arena.
#include "runtime/plan/CheckPlan.h"
#include "runtime/plan/MemoryUse.h"
#include "runtime/plan/PlanFile.h"
#include "tests/unit/compile/CompileTest.h"
#include <gmock/gmock.h>

namespace recast {
namespace {

using test::Program;
using Floats = std::vector<float>;

/// `keep` is what reads a for the last time: "a" itself, or what comes back from the host. 4,000 bytes a value.
std::string model(const std::string &copies, const std::string &keep) {
  return R"(
<ir_version: 10, opset_import: ["" : 18, "recast" : 1]>
g (float[1000] x) => (float[1000] z)
{
  a = Exp(x)
  )" + copies +
         R"(
  b = Sin(a)
  c = Softmax(b)
  d = Mul(c, b)
  e = ReduceSum(d)
  )" + (keep == "a" ? "" : keep + " = recast.fetch(h)") +
         R"(
  z = Mul()" +
         keep + R"(, e)
})";
}

const Buffer &buffer(const Plan &plan, std::string_view name) {
  auto found = std::ranges::find(plan.buffers, name, &Buffer::name);
  EXPECT_NE(found, plan.buffers.end()) << name;
  return *found;
}

Floats run(Program &program) {
  Floats x(1000);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(i % 17) / 16 - 0.5f;
  program.set<float>("x", x);
  program.run();
  return program.get<float>("z");
}

TEST(Offload, TheArenaShrinksByWhatTheHostHolds) {
  Program kept(model("", "a")), offloaded(model("h = recast.offload(a)", "a2"));
  ASSERT_TRUE(kept && offloaded);
  const Plan &plan = *offloaded.plan;
  EXPECT_EQ(buffer(plan, "h").place, Place::Host);
  EXPECT_EQ(plan.hostBytes, alignedBytes(4000));
  EXPECT_EQ(offloaded.executor->hostBytes(), plan.hostBytes);
  EXPECT_EQ(offloaded.executor->arenaBytes(), plan.arenaBytes);
  EXPECT_EQ(plan.arenaBytes, kept.plan->arenaBytes - alignedBytes(4000));
  EXPECT_EQ(kept.plan->hostBytes, 0u);
  EXPECT_EQ(run(offloaded), run(kept));
  EXPECT_THAT(print(plan), testing::AllOf(testing::HasSubstr("host     1 buffers, 4000 bytes, sharing 4032 bytes"),
                                          testing::HasSubstr("h f32[1000] host @0")));
  Lifetime life = lifetimes(plan)[static_cast<size_t>(&buffer(plan, "h") - plan.buffers.data())];
  EXPECT_EQ(plan.steps[static_cast<size_t>(life.first)].spec.op, "offload");
  EXPECT_EQ(plan.steps[static_cast<size_t>(life.last)].spec.op, "fetch");
  EXPECT_EQ(memoryUse(plan).hostBytes, plan.hostBytes);
}

TEST(Offload, ValuesThatFollowEachOtherShareTheHostsMemory) {
  Program program(R"(
<ir_version: 10, opset_import: ["" : 18, "recast" : 1]>
g (float[1000] x) => (float[1000] z)
{
  a = Exp(x)
  h = recast.offload(a)
  b = Sin(a)
  a2 = recast.fetch(h)
  c = Mul(a2, b)
  k = recast.offload(c)
  d = Softmax(c)
  c2 = recast.fetch(k)
  z = Mul(c2, d)
})");
  ASSERT_TRUE(program);
  EXPECT_EQ(program.plan->hostBytes, alignedBytes(4000));
  Floats z = run(program);
  EXPECT_TRUE(std::ranges::all_of(z, [](float value) { return std::isfinite(value); }));
}

TEST(Offload, WhatSomethingElseReadsIsInTheArena) {
  Program program(model("h = recast.offload(a)\n f = Neg(h)\n h2 = Exp(f)", "a2"));
  ASSERT_TRUE(program);
  EXPECT_EQ(program.plan->hostBytes, alignedBytes(4000)); // h2 and f are dead, so only the fetch reads h.
  Program read(R"(
<ir_version: 10, opset_import: ["" : 18, "recast" : 1]>
g (float[1000] x) => (float[1000] z)
{
  a = Exp(x)
  h = recast.offload(a)
  a2 = recast.fetch(h)
  z = Mul(a2, h)
})");
  ASSERT_TRUE(read);
  EXPECT_EQ(read.plan->hostBytes, 0u);
  EXPECT_EQ(buffer(*read.plan, "h").place, Place::Arena);
  Floats z = run(read);
  EXPECT_FLOAT_EQ(z[0], std::exp(-1.f));
}

TEST(Offload, BodiesHaveTheirsInThePlanAround) {
  Program program(R"(
<ir_version: 10, opset_import: ["" : 18, "recast" : 1]>
g (float[1000] x, float[3,1000] rows) => (float[1000] z)
{
  a = Exp(x)
  h = recast.offload(a)
  sum = Scan <num_scan_inputs = 1, body = b (float[1000] s, float[1000] row) => (float[1000] t) {
    u = Exp(row)
    k = recast.offload(u)
    v = Softmax(u)
    w = Mul(v, v)
    u2 = recast.fetch(k)
    y = Mul(w, u2)
    t = Add(s, y)
  }> (x, rows)
  a2 = recast.fetch(h)
  z = Mul(a2, sum)
})");
  ASSERT_TRUE(program);
  const Plan &plan = *program.plan;
  EXPECT_EQ(plan.hostBytes, 2 * alignedBytes(4000));
  EXPECT_EQ(program.executor->hostBytes(), plan.hostBytes);
  auto scan = std::ranges::find_if(plan.steps, [](const Step &step) { return !step.bodies.empty(); });
  ASSERT_NE(scan, plan.steps.end());
  EXPECT_EQ(scan->hostBytes, alignedBytes(4000));
  EXPECT_NE(scan->hostOffset, buffer(plan, "h").offset);
  program.set<float>("rows", Floats(3000, 1));
  Floats z = run(program);
  float e = std::exp(1.f);
  EXPECT_NEAR(z[8], std::exp(0.f) * (0 + 3 * e * 1e-6f), 1e-6); // x[8] is 0, and each softmax 1 / 1000.
}

TEST(Offload, PlanFilesKeepItAndBelieveNothing) {
  Program program(model("h = recast.offload(a)", "a2"));
  ASSERT_TRUE(program);
  std::string path = test::writeText("").string();
  ASSERT_TRUE(writePlan(*program.plan, path, {}).ok());
  auto read = readPlan(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(read) << read.message();
  EXPECT_EQ(print(**read), print(*program.plan));
  EXPECT_EQ((*read)->hostBytes, program.plan->hostBytes);
  auto indexOf = [&](const Plan &plan, std::string_view name) {
    return static_cast<size_t>(&buffer(plan, name) - plan.buffers.data());
  };
  auto refusal = [&](const std::function<void(Plan &)> &damage) {
    Plan plan = *program.plan;
    damage(plan);
    Status status = checkPlan(plan);
    return status.ok() ? std::string() : status.message();
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](Plan &) {}), "");
  EXPECT_THAT(refusal([](Plan &plan) { plan.hostBytes = 64; }), HasSubstr("'h' ends beyond the memory on the host"));
  EXPECT_THAT(refusal([&](Plan &plan) { plan.buffers[indexOf(plan, "h")].offset = 64; }),
              HasSubstr("'h' ends beyond the memory on the host"));
  EXPECT_THAT(refusal([](Plan &plan) { plan.hostBytes = SIZE_MAX; }), HasSubstr("larger than there can be"));
  EXPECT_THAT(refusal([](Plan &plan) { plan.steps[0].hostBytes = 5000; }), HasSubstr("ends beyond the memory there"));
  EXPECT_THAT(refusal([&](Plan &plan) {
                plan.buffers[indexOf(plan, "b")].place = Place::Host;
                plan.buffers[indexOf(plan, "b")].offset = 0;
              }),
              HasSubstr("computes on the host's memory"));
  EXPECT_THAT(refusal([&](Plan &plan) { plan.outputs[0].buffer = static_cast<int>(indexOf(plan, "h")); }),
              HasSubstr("is in the host's memory"));
  EXPECT_THAT(refusal([&](Plan &plan) {
                Buffer &view = plan.buffers[indexOf(plan, "c")];
                view.place = Place::View;
                view.offset = indexOf(plan, "h");
              }),
              HasSubstr("is no view of its buffer"));
}

} // namespace
} // namespace recast
