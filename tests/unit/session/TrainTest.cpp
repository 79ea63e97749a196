#include "runtime/session/Session.h"
#include "runtime/session/State.h"
#include "tests/unit/exec/PlanBuilder.h"
#include "tests/unit/session/SessionTest.h"
#include <cstring>
#include <nlohmann/json.hpp>

namespace recast {
namespace {

using namespace test;

constexpr int64_t kSamples = 10;

/// Ten samples of x, none of them a round number, so that an order of sums shows.
std::string writeData(const TempFolder &folder) {
  std::vector<float> values;
  for (int64_t i = 0; i < kSamples * 3; ++i)
    values.push_back(1.0f / static_cast<float>(i + 3));
  std::string path = folder / "data.safetensors";
  EXPECT_TRUE(writeSafetensors(path, {{"x", {DType::F32, {kSamples, 3}}, values.data()}}).ok());
  return path;
}

Result<std::unique_ptr<Plan>> planFor(const std::map<std::string, TensorType> &inputs) {
  return linearStepPlan(inputs.at("x").dims[0]);
}

std::vector<GraphInput> graphInputs() { return {{"x", {DType::F32, {-1, 3}}}}; }

Result<std::unique_ptr<Session>> makeSession(const SessionOptions &options) {
  return Session::create(options, graphInputs(), planFor);
}

void train(const SessionOptions &options) {
  auto session = makeSession(options);
  ASSERT_TRUE(session) << session.message();
  Status status = (*session)->train();
  ASSERT_TRUE(status.ok()) << status.message();
}

SessionOptions optionsFor(const TempFolder &folder, int64_t batch) {
  SessionOptions options;
  options.data = DataOptions{writeData(folder), DataLayout::Samples, batch, /*shuffle=*/true, /*seed=*/5, false};
  return options;
}

std::vector<nlohmann::json> linesOf(const std::string &path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    lines.push_back(nlohmann::json::parse(line));
  return lines;
}

template <typename T> std::vector<T> tensorIn(const std::string &path, const std::string &name) {
  auto file = readSafetensors(path);
  EXPECT_TRUE(file) << file.message();
  const HostTensor &tensor = file->tensors.at(name);
  std::vector<T> values(static_cast<size_t>(tensor.type.elems()));
  std::memcpy(values.data(), tensor.data, values.size() * sizeof(T));
  return values;
}

TEST(Session, TrainsOverEpochsWithASmallerLastBatch) {
  TempFolder folder;
  SessionOptions options = optionsFor(folder, 4);
  options.epochs = 2;
  options.stateOut = folder / "state.safetensors";
  options.metrics = folder / "metrics.jsonl";
  options.profile = folder / "trace.json";
  train(options);
  // Every sample counts once an epoch, whatever batch it is in: w = w0 - lr * 2 * sum of x.
  std::vector<float> x = tensorIn<float>(folder / "data.safetensors", "x");
  std::vector<float> w = tensorIn<float>(options.stateOut, "w");
  for (size_t column = 0; column < 3; ++column) {
    double sum = 0;
    for (size_t row = 0; row < kSamples; ++row)
      sum += x[row * 3 + column];
    EXPECT_NEAR(w[column], 1.0 + static_cast<double>(column) - 0.125 * 2 * sum, 1e-6); // Six f32 updates.
  }
  EXPECT_EQ(tensorIn<int64_t>(options.stateOut, "step"), (std::vector<int64_t>{6}));
  auto lines = linesOf(options.metrics);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[5]["step"], 6);
  EXPECT_EQ(lines[5]["lr"], 0.125);
  EXPECT_TRUE(lines[5]["loss"].is_number_float() && lines[5]["seconds"].get<double>() > 0);
  EXPECT_FALSE(lines[5].contains("step.next"));
  auto trace = nlohmann::json::parse(readFile(options.profile));
  EXPECT_EQ(trace["traceEvents"].size(), 36u);
  EXPECT_EQ(trace["traceEvents"][35]["args"]["step"], 6);
  EXPECT_EQ(folder.list(),
            (std::vector<std::string>{"data.safetensors", "metrics.jsonl", "state.safetensors", "trace.json"}));
}

TEST(Session, StacksOutputsOfEveryStep) {
  TempFolder folder;
  SessionOptions options = optionsFor(folder, 5);
  options.steps = 3;
  options.outputs = folder / "outputs.safetensors";
  options.stateOut = folder / "state.safetensors";
  train(options);
  auto file = readSafetensors(options.outputs);
  ASSERT_TRUE(file) << file.message();
  EXPECT_EQ(file->tensors.size(), 4u);
  EXPECT_EQ(file->tensors["loss"].type, (TensorType{DType::F32, {3}}));
  EXPECT_EQ(file->tensors["w.next"].type, (TensorType{DType::F32, {3, 1, 3}}));
  EXPECT_EQ(tensorIn<int64_t>(options.outputs, "step.next"), (std::vector<int64_t>{1, 2, 3}));
  std::vector<float> w = tensorIn<float>(options.outputs, "w.next");
  EXPECT_EQ(tensorIn<float>(options.stateOut, "w"), std::vector<float>(w.end() - 3, w.end()));
}

TEST(Session, ResumesBitForBit) {
  TempFolder folder;
  SessionOptions options = optionsFor(folder, 4);
  options.epochs = 4;
  options.schedule = {"cosine", 2, 0.001};
  SessionOptions whole = options;
  whole.stateOut = folder / "whole.safetensors";
  whole.metrics = folder / "whole.jsonl";
  train(whole);

  options.checkpointDir = folder / "checkpoints";
  options.checkpointEvery = 5;
  options.resume = true; // The first run finds no checkpoint.
  options.stateOut = folder / "resumed.safetensors";
  options.metrics = folder / "resumed.jsonl";
  train(options);
  EXPECT_EQ(readFile(whole.stateOut), readFile(options.stateOut));
  // As if the run had been killed after step 7: the checkpoint of step 5 is the last, the log has two steps more.
  std::filesystem::remove(checkpointPath(options.checkpointDir, 10));
  std::filesystem::remove(options.stateOut);
  auto session = makeSession(options);
  ASSERT_TRUE(session) << session.message();
  ASSERT_TRUE((*session)->train().ok());
  EXPECT_EQ(readFile(whole.stateOut), readFile(options.stateOut));
  auto lines = linesOf(options.metrics), expected = linesOf(whole.metrics);
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    lines[i].erase("seconds");
    expected[i].erase("seconds");
    EXPECT_EQ(lines[i], expected[i]);
  }

  SessionOptions other = options;
  other.data->seed = 6;
  expectError(makeSession(other).status(),
              {"step-00000010.safetensors", "data is '10 rows, 4 a step, shuffled with seed 5'", "seed 6"});
  other = options;
  other.schedule.minLr = 0;
  expectError(makeSession(other).status(), {"schedule is 'cosine from 0.125, warm-up 2, to 0.001 over 12 steps'"});
  other = options;
  other.resume = false;
  expectError(makeSession(other).status(), {"checkpoints of an earlier run", "--resume"});
}

TEST(Session, SetsTheLearningRateOfEveryStep) {
  TempFolder folder;
  writeFile(folder / "rates", "0.5\n0.25\n");
  SessionOptions options = optionsFor(folder, 5);
  options.schedule.kind = folder / "rates";
  options.metrics = folder / "metrics.jsonl";
  train(options);
  auto lines = linesOf(options.metrics);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["lr"], 0.5);
  EXPECT_EQ(lines[1]["lr"], 0.25);
}

TEST(Session, ReadsStateAndSaysWhatIsMissing) {
  TempFolder folder;
  SessionOptions options = optionsFor(folder, 5);
  options.stateOut = folder / "first.safetensors";
  train(options);
  SessionOptions second = options;
  second.stateIn = options.stateOut;
  second.stateOut = folder / "second.safetensors";
  train(second);
  EXPECT_EQ(tensorIn<int64_t>(second.stateOut, "step"), (std::vector<int64_t>{4}));

  float w[3] = {};
  second.stateIn = folder / "partial.safetensors";
  ASSERT_TRUE(writeSafetensors(second.stateIn, {{"w", {DType::F32, {1, 3}}, w}}).ok());
  expectError(makeSession(second).status(), {"partial.safetensors", "'lr', 'step'", "it has 'w' (f32[1,3])"});
  ASSERT_TRUE(
      writeSafetensors(second.stateIn,
                       {{"w", {DType::F32, {3}}, w}, {"lr", {DType::F32, {}}, w}, {"step", {DType::I64, {}}, w}})
          .ok());
  expectError(makeSession(second).status(), {"state 'w' is f32[1,3] in the model and f32[3]"});
}

/// y = 10 / x in integers: fails where x is 0.
Result<std::unique_ptr<Plan>> divisionPlan(const std::map<std::string, TensorType> &inputs) {
  PlanBuilder b;
  TensorType type = inputs.at("x");
  int x = b.input("x", type), ten = b.constant<int64_t>("ten", {DType::I64, {}}, {10}), y = b.value("y", type);
  b.step("Div", 14, {ten, x}, {y});
  b.output("y", y);
  return b.build();
}

TEST(Session, RunsAModelWithoutStateForEveryBatch) {
  TempFolder folder;
  std::vector<int64_t> x{1, 2, 5, 10};
  SessionOptions options;
  options.data = DataOptions{folder / "x.safetensors", DataLayout::Samples, 2};
  options.outputs = folder / "y";
  ASSERT_TRUE(writeSafetensors(options.data->path, {{"in.x", {DType::I64, {4}}, x.data()}}).ok());
  auto session = Session::create(options, {{"x", {DType::I64, {-1}}}}, divisionPlan);
  ASSERT_TRUE(session) << session.message();
  ASSERT_TRUE((*session)->train().ok());
  EXPECT_EQ(tensorIn<int64_t>(options.outputs, "y"), (std::vector<int64_t>{10, 5, 2, 1}));

  options.stateIn = options.outputs;
  expectError(Session::create(options, {{"x", {DType::I64, {-1}}}}, divisionPlan).status(), {"no step model"});
}

TEST(Session, LeavesNothingAfterAnError) {
  TempFolder folder;
  std::vector<int64_t> x{0, 2};
  SessionOptions options;
  options.data = DataOptions{folder / "x.safetensors", DataLayout::Single};
  ASSERT_TRUE(writeSafetensors(options.data->path, {{"x", {DType::I64, {2}}, x.data()}}).ok());
  options.outputs = folder / "y.safetensors";
  options.metrics = folder / "m.jsonl";
  options.profile = folder / "p.json";
  auto session = Session::create(options, {{"x", {DType::I64, {-1}}}}, divisionPlan);
  ASSERT_TRUE(session) << session.message();
  expectError((*session)->train(), {"step 1: ", "Div.0"});
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"x.safetensors"}));
}

TEST(Session, RefusesBeforeTheFirstStep) {
  TempFolder folder;
  SessionOptions options;
  expectError(makeSession(options).status(), {"no data for the inputs 'x' (f32[?,3])", "--data=FILE"});
  options = optionsFor(folder, 4);
  options.outputs = folder / "none/outputs.safetensors";
  expectError(makeSession(options).status(), {"none/outputs.safetensors", "No such file"});
  options = optionsFor(folder, 4);
  options.resume = true;
  expectError(makeSession(options).status(), {"--checkpoint-dir"});
  options = optionsFor(folder, 4);
  options.epochs = INT64_MAX;
  expectError(makeSession(options).status(), {"too many"});
  auto refused =
      Session::create(optionsFor(folder, 4), graphInputs(), [](const auto &) -> Result<std::unique_ptr<Plan>> {
        return Status::error("node 'n' has no kernel");
      });
  expectError(refused.status(), {"node 'n' has no kernel"});
}

} // namespace
} // namespace recast
