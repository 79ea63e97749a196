// Models as text, compiled and run.
#pragma once
#include "runtime/compile/Compile.h"
#include "runtime/exec/Executor.h"
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

namespace recast::test {

/// A new file with a model in ONNX's text form.
inline std::filesystem::path writeText(const std::string &text) {
  std::string pattern = (std::filesystem::temp_directory_path() / "recast-XXXXXX").string();
  int descriptor = mkstemp(pattern.data());
  if (descriptor >= 0)
    close(descriptor);
  std::filesystem::path path = pattern + ".onnxtxt";
  std::filesystem::rename(pattern, path);
  std::ofstream(path) << text;
  return path;
}

/// A model from ONNX's text form, through a file that is gone again when this returns.
inline Result<std::unique_ptr<Model>> loadText(const std::string &text) {
  std::filesystem::path path = writeText(text);
  auto model = Model::load(path.string());
  std::filesystem::remove(path);
  return model;
}

/// The text of the error that compiling gives; "" where it succeeds.
inline std::string errorOf(const std::string &text, const CompileOptions &options = {}) {
  auto model = loadText(text);
  if (!model)
    return model.message();
  auto plan = (*model)->compile(options);
  return plan ? "" : plan.message();
}

/// A compiled model with its executor. Failures are test failures.
class Program {
public:
  explicit Program(const std::string &text, const CompileOptions &options = {}) {
    auto loaded = loadText(text);
    if (!loaded) {
      ADD_FAILURE() << loaded.message();
      return;
    }
    model = std::move(*loaded);
    auto compiled = model->compile(options);
    if (!compiled) {
      ADD_FAILURE() << compiled.message();
      return;
    }
    plan = std::move(*compiled);
    model.reset(); // Plans keep what they need.
    auto created = Executor::create(*plan, options.referenceOnly);
    if (created)
      executor = std::move(*created);
    else
      ADD_FAILURE() << created.message();
  }

  explicit operator bool() const { return executor != nullptr; }
  template <typename T> void set(std::string_view name, const std::vector<T> &values) {
    TensorRef tensor = executor->tensor(executor->find(name));
    ASSERT_EQ(tensor.bytes(), values.size() * sizeof(T)) << name;
    std::memcpy(tensor.data, values.data(), tensor.bytes());
  }
  template <typename T> std::vector<T> get(std::string_view name) const {
    TensorRef tensor = executor->tensor(executor->find(name));
    return std::vector<T>(tensor.as<T>(), tensor.as<T>() + tensor.elems());
  }
  std::vector<int64_t> dims(std::string_view name) const {
    auto span = executor->tensor(executor->find(name)).dims;
    return {span.begin(), span.end()};
  }
  void run() {
    Status status = executor->run();
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  }
  std::vector<std::string> ops() const {
    std::vector<std::string> result;
    for (const Step &step : plan->steps)
      result.push_back(step.spec.op);
    return result;
  }

  std::unique_ptr<Model> model;
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Executor> executor;
};

} // namespace recast::test
