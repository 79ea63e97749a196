#include "runtime/exec/Executor.h"
#include "tests/unit/exec/PlanBuilder.h"
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace {
std::atomic<size_t> allocations = 0;
} // namespace

// Counts what this binary allocates: executor, kernels, the templates they use. oneDNN makes a small map of its
// arguments at every execution; what it allocates inside its own library is not ours to avoid.
void *operator new(size_t bytes) {
  Dl_info caller;
  bool ours = !dladdr(__builtin_return_address(0), &caller) || !std::strstr(caller.dli_fname, "libdnnl");
  allocations += ours;
  if (void *memory = std::malloc(bytes ? bytes : 1))
    return memory;
  throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

namespace recast {
namespace {

using test::PlanBuilder;

std::unique_ptr<Executor> executorOf(const Plan &plan, bool referenceOnly = false) {
  auto executor = Executor::create(plan, referenceOnly);
  EXPECT_TRUE(executor) << executor.message();
  return executor ? std::move(*executor) : nullptr;
}

void setFloats(const TensorRef &tensor, std::vector<float> values) {
  ASSERT_EQ(tensor.bytes(), values.size() * sizeof(float));
  std::memcpy(tensor.data, values.data(), tensor.bytes());
}

std::vector<float> floats(const TensorRef &tensor) { return {tensor.as<float>(), tensor.as<float>() + tensor.elems()}; }

/// y = sum(x @ w + b) on x [2,3], w [3,2], b [2].
std::unique_ptr<Plan> affinePlan(bool referenceOnly) {
  PlanBuilder b;
  int x = b.input("x", {DType::F32, {2, 3}});
  int w = b.constant<float>("w", {DType::F32, {3, 2}}, {1, 2, 3, 4, 5, 6});
  int bias = b.constant<float>("b", {DType::F32, {2}}, {10, 20});
  int product = b.value("product", {DType::F32, {2, 2}}), sum = b.value("sum", {DType::F32, {2, 2}});
  int total = b.value("total", {DType::F32, {}});
  Attributes drop;
  drop.set("keepdims", int64_t(0));
  b.step("MatMul", 13, {x, w}, {product});
  b.step("Add", 14, {product, bias}, {sum});
  b.step("ReduceSum", 13, {sum}, {total}, drop);
  b.output("sum", sum);
  b.output("y", total);
  return b.build(referenceOnly);
}

class Kernels : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Lists, Kernels, testing::Values(false, true),
                         [](const auto &info) { return info.param ? "reference" : "all"; });

TEST_P(Kernels, RunsInputsToOutputs) {
  auto plan = affinePlan(GetParam());
  auto executor = executorOf(*plan, GetParam());
  ASSERT_TRUE(executor);
  EXPECT_EQ(executor->arenaBytes(), plan->arenaBytes);
  EXPECT_EQ(executor->find("w"), -1);
  setFloats(executor->tensor(executor->find("x")), {1, 0, 0, 0, 1, 1});
  Status status = executor->run();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(floats(executor->tensor(executor->find("sum"))), (std::vector<float>{11, 22, 18, 30}));
  EXPECT_EQ(floats(executor->tensor(executor->find("y"))), (std::vector<float>{81}));
}

TEST_P(Kernels, AllocatesNothingAfterTheFirstRun) {
  auto plan = affinePlan(GetParam());
  auto executor = executorOf(*plan, GetParam());
  ASSERT_TRUE(executor);
  ASSERT_TRUE(executor->run().ok());
  size_t before = allocations;
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(allocations - before, 0u);
}

TEST(Executor, KeepsStateFromStepToStep) {
  auto plan = test::linearStepPlan(2);
  auto executor = executorOf(*plan);
  ASSERT_TRUE(executor);
  setFloats(executor->tensor(executor->find("x")), {1, 2, 3, 1, 2, 3});
  ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(floats(executor->tensor(executor->find("loss"))), (std::vector<float>{28}));
  EXPECT_EQ(floats(executor->tensor(executor->find("w"))), (std::vector<float>{0.75f, 1.5f, 2.25f}));
  ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(floats(executor->tensor(executor->find("loss"))), (std::vector<float>{21}));
  EXPECT_EQ(*executor->tensor(executor->find("step")).as<int64_t>(), 2);
  // The plan's initial values are still there for the next executor.
  auto second = executorOf(*plan);
  EXPECT_EQ(floats(second->tensor(second->find("w"))), (std::vector<float>{1, 2, 3}));
}

TEST(Executor, SwapsStatesThatUpdateEachOther) {
  PlanBuilder b;
  int first = b.state<float>("first", {DType::F32, {2}}, {1, 2}),
      second = b.state<float>("second", {DType::F32, {2}}, {3, 4});
  b.output("first.next", second, first);
  b.output("second.next", first, second);
  auto plan = b.build();
  auto executor = executorOf(*plan);
  ASSERT_TRUE(executor && executor->run().ok());
  EXPECT_EQ(floats(executor->tensor(first)), (std::vector<float>{3, 4}));
  EXPECT_EQ(floats(executor->tensor(second)), (std::vector<float>{1, 2}));
}

TEST(Executor, AnErrorLeavesTheState) {
  PlanBuilder b;
  int x = b.input("x", {DType::I64, {}}), w = b.state<int64_t>("w", {DType::I64, {}}, {5});
  int one = b.constant<int64_t>("one", {DType::I64, {}}, {1});
  int sum = b.value("sum", {DType::I64, {}}), quotient = b.value("quotient", {DType::I64, {}});
  b.step("Add", 14, {w, one}, {sum});
  b.step("Div", 14, {one, x}, {quotient}); // x is 0.
  b.output("w.next", sum, w);
  b.output("quotient", quotient);
  auto plan = b.build();
  auto executor = executorOf(*plan);
  ASSERT_TRUE(executor);
  Status status = executor->run();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("Div.1"), std::string::npos) << status.message();
  EXPECT_EQ(*executor->tensor(w).as<int64_t>(), 5);
}

TEST(Executor, ObservesEverySteps) {
  auto plan = affinePlan(true);
  auto executor = executorOf(*plan);
  ASSERT_TRUE(executor);
  std::vector<std::pair<size_t, bool>> seen;
  executor->observer = [&](const StepEvent &event) { seen.emplace_back(event.step, event.isBegin); };
  ASSERT_TRUE(executor->run().ok());
  EXPECT_EQ(seen, (std::vector<std::pair<size_t, bool>>{
                      {0, true}, {0, false}, {1, true}, {1, false}, {2, true}, {2, false}}));
}

std::string messageOf(const Plan &plan) {
  auto executor = Executor::create(plan);
  return executor ? "" : executor.message();
}

TEST(Executor, RefusesDamagedPlans) {
  auto plan = affinePlan(true);
  plan->arenaBytes = 64;
  EXPECT_NE(messageOf(*plan).find("beyond the arena"), std::string::npos);

  plan = affinePlan(true);
  plan->steps[0].library = "another";
  EXPECT_NE(messageOf(*plan).find("the plan has another for 'MatMul.0'"), std::string::npos);

  plan = affinePlan(true);
  plan->steps[0].spec.op = "Unheard";
  EXPECT_NE(messageOf(*plan).find("no kernel runs 'MatMul.0' (Unheard)"), std::string::npos);

  plan = test::linearStepPlan(2);
  plan->data.erase(1);
  EXPECT_NE(messageOf(*plan).find("state input 'w' has no initial value"), std::string::npos);

  plan = test::linearStepPlan(2);
  plan->outputs[0].updates = plan->outputs[2].updates;
  EXPECT_NE(messageOf(*plan).find("output 'loss' is f32[], but the state that it updates, 'w', is f32[1,3]"),
            std::string::npos);
}

TEST(Plan, PrintsStepsKernelsAndBuffers) {
  auto plan = affinePlan(true);
  plan->steps[0].refusals = {"onednn: only the reference evaluator is allowed"};
  std::string text = print(*plan);
  for (const char *part :
       {"plan: 3 steps", "input    1 buffers, 24 bytes", "arena    3 buffers, 36 bytes, sharing 192 bytes",
        "MatMul-13     reference  'MatMul.0'", "refused by onednn: only the reference",
        "(x f32[2,3] input, w f32[3,2] constant) -> (product f32[2,2] @0)", "output y = total f32[] @128"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  EXPECT_EQ(plan->bytesAt(Place::Constant), 32u);
  EXPECT_NE(print(*test::linearStepPlan(2)).find("output w.next = w.next f32[1,3] @"), std::string::npos);
}

} // namespace
} // namespace recast
