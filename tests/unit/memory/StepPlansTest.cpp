// The memory plans of whole training steps: working in place changes no bit, and no live value is ever written over.
#include "runtime/exec/Executor.h"
#include "runtime/plan/MemoryUse.h"
#include "tests/unit/StepModel.h"
#include <algorithm>
#include <cstring>
#include <set>

namespace recast {
namespace {

using test::modelNames;

struct Recipe {
  const char *name;
  void (*set)(PipelineOptions &options);
};
constexpr Recipe kRecipes[] = {
    {"f32", [](PipelineOptions &options) { options.clipNorm = 1, options.ema = 0.9; }},
    {"f16", [](PipelineOptions &options) { options.precision = "f16", options.optimizer = "sgd"; }},
    {"accumulated", [](PipelineOptions &options) { options.accumulate = 2, options.optimizer = "rmsprop"; }},
    {"fp8", [](PipelineOptions &options) { options.precision = "fp8-delayed", options.clipValue = 1; }},
};

/// FNV-1a.
uint64_t hashOf(const TensorRef &tensor) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < tensor.bytes(); ++i)
    hash = (hash ^ tensor.as<uint8_t>()[i]) * 0x100000001b3;
  return hash;
}

/// Notes what every value holds when it is made, and looks again whenever it is read.
class Watch {
public:
  explicit Watch(Executor &executor) : executor(executor) {
    executor.observer = [this](const StepEvent &event) {
      const Step &step = event.plan.steps[event.step];
      if (!event.isBegin) {
        for (size_t k = 0; k < step.outputs.size(); ++k)
          note(event.plan, step.outputs[k], event.outputs[k]);
        return;
      }
      for (size_t j = 0; j < step.inputs.size(); ++j)
        look(event.plan, step, step.inputs[j], event.inputs[j]);
    };
  }
  void begin() {
    made.clear(), replaced.clear();
    const Plan &plan = executor.plan();
    for (size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].place == Place::State || plan.buffers[i].place == Place::Input)
        note(plan, static_cast<int>(i), executor.tensor(static_cast<int>(i)));
  }
  size_t checks = 0;

private:
  using Key = std::pair<const Plan *, int>;
  void note(const Plan &plan, int buffer, const TensorRef &tensor) {
    if (buffer < 0)
      return;
    made[{&plan, buffer}] = hashOf(tensor);
    if (int root = plan.rootOf(buffer); root != buffer)
      replaced.insert({&plan, root});
  }
  void look(const Plan &plan, const Step &step, int buffer, const TensorRef &tensor) {
    if (buffer < 0)
      return;
    // A view that no step makes holds what its buffer holds; of a state that is replaced it may be old or new.
    bool isMade = made.contains({&plan, buffer});
    int source = isMade ? buffer : plan.rootOf(buffer);
    auto before = made.find({&plan, source});
    if (before == made.end() || (!isMade && replaced.contains({&plan, source})))
      return;
    ++checks;
    EXPECT_EQ(hashOf(tensor), before->second)
        << plan.buffers[static_cast<size_t>(buffer)].name << " has changed before " << step.spec.name << " reads it";
  }

  Executor &executor;
  std::map<Key, uint64_t> made;
  std::set<Key> replaced; ///< States whose new value lies in their memory.
};

class StepPlan : public testing::TestWithParam<std::tuple<std::string, Recipe>> {
protected:
  void SetUp() override {
    auto [name, recipe] = GetParam();
    recipe.set(options);
    model.make(name, options, /*bindsSizes=*/false);
  }
  std::unique_ptr<Plan> compile(bool inPlace, bool regions = false) {
    return model.compile({.regions = regions, .regionElems = 0, .inPlace = inPlace});
  }

  void expectSame(const Plan &plan, const Plan &apart);
  void expectStateInPlace(const Plan &plan) const;

  test::StepModel model;
  PipelineOptions options;
};

/// Runs both plans for some steps; everything that they give and keep is the same.
void StepPlan::expectSame(const Plan &plan, const Plan &apart) {
  auto executor = Executor::create(plan), other = Executor::create(apart);
  ASSERT_TRUE(executor) << executor.message();
  ASSERT_TRUE(other) << other.message();
  EXPECT_EQ((*executor)->arenaBytes(), plan.arenaBytes);
  std::set<std::string> names;
  for (const Output &output : plan.outputs)
    names.insert(output.name);
  for (const Buffer &buffer : plan.buffers)
    if (buffer.place == Place::State)
      names.insert(buffer.name);
  Watch watch(**executor), otherWatch(**other);
  for (int64_t step = 0; step < 3; ++step) {
    for (auto [each, look] : {std::pair(executor->get(), &watch), std::pair(other->get(), &otherWatch)}) {
      for (int index : each->plan().inputs)
        model.fill(each->plan(), index, step, each->tensor(index).data);
      look->begin();
      Status status = each->run();
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (const std::string &name : names) {
      TensorRef a = (*executor)->tensor((*executor)->find(name)), b = (*other)->tensor((*other)->find(name));
      ASSERT_EQ(a.bytes(), b.bytes()) << name;
      EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << name << " differs after step " << step + 1;
    }
  }
  EXPECT_GT(watch.checks, plan.steps.size());
}

/// No parameter, moment or average is copied: nothing in a step can fail after the first of them is written.
void StepPlan::expectStateInPlace(const Plan &plan) const {
  size_t updates = 0;
  for (const Step &step : plan.steps) {
    bool isUpdate = step.spec.domain == "recast" && (step.spec.op == options.optimizer || step.spec.op == "ema");
    updates += isUpdate;
    for (int output : step.outputs)
      EXPECT_TRUE(!isUpdate || plan.rootOf(output) != output) << step.spec.name;
  }
  EXPECT_GT(updates, 0u);
}

void expectAddsUp(const Plan &plan) {
  MemoryUse use = memoryUse(plan);
  EXPECT_EQ(use.valueBytes + use.outputBytes + use.workspaceBytes + use.lostBytes, plan.arenaBytes);
  EXPECT_EQ(use.liveBytes.size(), plan.steps.size());
  size_t held = 0;
  for (const Holder &holder : use.holders)
    held += holder.bytes;
  EXPECT_EQ(held, use.liveBytes[static_cast<size_t>(use.fullest)]);
  // Holders of one step lie apart.
  std::ranges::sort(use.holders, {}, &Holder::offset);
  for (size_t i = 1; i < use.holders.size(); ++i)
    EXPECT_LE(use.holders[i - 1].offset + use.holders[i - 1].bytes, use.holders[i].offset) << use.holders[i].name;
}

TEST_P(StepPlan, InPlaceIsSmallerAndTheSame) {
  std::unique_ptr<Plan> plan = compile(true), apart = compile(false);
  ASSERT_TRUE(plan && apart);
  EXPECT_LE(plan->arenaBytes, apart->arenaBytes);
  expectSame(*plan, *apart);
  expectStateInPlace(*plan);
  expectAddsUp(*plan);
  expectAddsUp(*apart);
}

class GeneratedStepPlan : public StepPlan {};

/// Generated steps write over nothing that is still read either; and what they give does not depend on what is fused,
/// which differs between the two plans.
TEST_P(GeneratedStepPlan, InPlaceIsTheSame) {
  std::unique_ptr<Plan> plan = compile(true, true), apart = compile(false, true);
  ASSERT_TRUE(plan && apart);
  EXPECT_FALSE(plan->code.empty());
  EXPECT_LE(plan->arenaBytes, apart->arenaBytes);
  expectSame(*plan, *apart);
  expectAddsUp(*plan);
}

INSTANTIATE_TEST_SUITE_P(Torch, GeneratedStepPlan,
                         testing::Combine(testing::ValuesIn(modelNames()), testing::Values(kRecipes[0])),
                         [](const auto &info) { return std::get<0>(info.param); });
INSTANTIATE_TEST_SUITE_P(Torch, StepPlan,
                         testing::Combine(testing::ValuesIn(modelNames()), testing::ValuesIn(kRecipes)),
                         [](const auto &info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

} // namespace
} // namespace recast
