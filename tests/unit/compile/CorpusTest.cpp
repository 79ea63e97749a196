// The forward of every exported model, against PyTorch's float64 loss.
#include "runtime/compile/Compile.h"
#include "runtime/exec/Executor.h"
#include "runtime/session/Safetensors.h"
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>

namespace recast {
namespace {

namespace fs = std::filesystem;
const fs::path kTorch = fs::path(RECAST_CORPUS) / "torch";

std::vector<std::string> modelNames() {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto &entry : fs::directory_iterator(kTorch, code))
    if (fs::exists(entry.path() / "model.onnx"))
      names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  if (names.empty())
    names.push_back("the_corpus_is_missing");
  return names;
}

/// Why a model does not run; "" where it does.
std::string reasonToRefuse(const std::string &name) {
  for (std::string_view start : {"gru_", "lstm_", "rnn_"})
    if (name.starts_with(start))
      return "come with a later version";
  return name == "ctrl_loop" ? "depends on data" : ""; // It collects as many values as an input says.
}

class Corpus : public testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(Corpus, LossAgrees) {
  auto [name, referenceOnly] = GetParam();
  auto model = Model::load((kTorch / name / "model.onnx").string());
  ASSERT_TRUE(model.ok()) << model.message();
  auto reference = readSafetensors((kTorch / name / "reference.safetensors").string());
  ASSERT_TRUE(reference.ok()) << reference.message();
  CompileOptions options{.referenceOnly = referenceOnly};
  for (const InputInfo &input : (*model)->inputs()) {
    auto data = reference->tensors.find("in." + input.name);
    ASSERT_NE(data, reference->tensors.end()) << input.name;
    const std::vector<int64_t> &dims = data->second.type.dims; // [3 batches, ...]
    bool isFixed = !std::ranges::count(input.type.dims, -1);
    options.inputs[input.name] = isFixed ? input.type : TensorType{input.type.dtype, {dims.begin() + 1, dims.end()}};
  }
  auto plan = (*model)->compile(options);
  if (std::string reason = reasonToRefuse(name); !reason.empty()) {
    ASSERT_FALSE(plan.ok());
    EXPECT_NE(plan.message().find(reason), std::string::npos) << plan.message();
    return;
  }
  ASSERT_TRUE(plan.ok()) << plan.message();
  auto executor = Executor::create(**plan, referenceOnly);
  ASSERT_TRUE(executor.ok()) << executor.message();
  for (const auto &[input, type] : options.inputs) {
    int buffer = (*executor)->find(input);
    ASSERT_GE(buffer, 0) << input;
    const HostTensor &data = reference->tensors.find("in." + input)->second;
    std::string bad;
    ASSERT_TRUE(convert(data.type.dtype, data.data, type.dtype, (*executor)->tensor(buffer).data, type.elems(), bad))
        << bad;
  }
  Status status = (*executor)->run();
  ASSERT_TRUE(status.ok()) << status.message();
  double expected;
  std::memcpy(&expected, reference->tensors.find("loss")->second.data, sizeof expected);
  float loss = *(*executor)->tensor((*executor)->find((*model)->outputs()[0])).as<float>();
  // The bound of the corpus's own check against onnxruntime; float32 itself is within 3e-7.
  EXPECT_NEAR(loss, expected, 1e-4 * std::max(1.0, std::abs(expected)));
}

INSTANTIATE_TEST_SUITE_P(Torch, Corpus, testing::Combine(testing::ValuesIn(modelNames()), testing::Bool()),
                         [](const auto &info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) ? "_reference" : "");
                         });

} // namespace
} // namespace recast
