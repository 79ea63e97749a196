// Plans by hand, for tests of what runs them: every value has its own place in the arena.
#pragma once
#include "runtime/exec/AlignedBuffer.h"
#include "runtime/plan/Plan.h"
#include <cstring>
#include <stdexcept>

namespace recast::test {

class PlanBuilder {
public:
  int input(std::string name, TensorType type) { return add({std::move(name), std::move(type), Place::Input}); }
  int value(std::string name, TensorType type) {
    size_t offset = reserve(type.bytes());
    return add({std::move(name), std::move(type), Place::Arena, offset});
  }
  template <typename T> int constant(std::string name, TensorType type, std::vector<T> values) {
    return withData({std::move(name), std::move(type), Place::Constant}, std::move(values));
  }
  template <typename T> int state(std::string name, TensorType type, std::vector<T> values) {
    return withData({std::move(name), std::move(type), Place::State}, std::move(values));
  }
  void step(std::string op, int64_t version, std::vector<int> inputs, std::vector<int> outputs, Attributes attrs = {}) {
    Step step;
    step.spec.name = op + "." + std::to_string(plan->steps.size());
    step.spec.op = std::move(op);
    step.spec.version = version;
    step.spec.attrs = std::move(attrs);
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    plan->steps.push_back(std::move(step));
  }
  void output(std::string name, int buffer, int updates = -1) {
    plan->outputs.push_back({std::move(name), buffer, updates});
  }

  /// Chooses the kernels as the compiler does. Throws where there is none.
  std::unique_ptr<Plan> build(bool referenceOnly = false) {
    for (Step &step : plan->steps) {
      for (int index : step.inputs) {
        const Buffer &buffer = plan->buffers[index];
        step.spec.inputs.push_back(buffer.type);
        auto data = plan->data.find(index);
        bool constant = buffer.place == Place::Constant;
        step.spec.constants.push_back(
            {buffer.type.dtype, buffer.type.dims, constant ? const_cast<void *>(data->second.bytes) : nullptr});
      }
      for (int index : step.outputs)
        step.spec.outputs.push_back(plan->buffers[index].type);
      KernelChoice choice = chooseCpuKernel(step.spec, referenceOnly);
      if (!choice.kernel)
        throw std::runtime_error("no kernel for " + step.spec.name);
      step.library = choice.library;
      step.refusals = choice.refusals;
      step.workspaceBytes = choice.kernel->workspaceBytes();
      step.workspaceOffset = reserve(step.workspaceBytes);
    }
    return std::move(plan);
  }

private:
  int add(Buffer buffer) {
    int index = static_cast<int>(plan->buffers.size());
    if (buffer.place == Place::Input)
      plan->inputs.push_back(index);
    plan->buffers.push_back(std::move(buffer));
    return index;
  }
  template <typename T> int withData(Buffer buffer, std::vector<T> values) {
    int index = add(std::move(buffer));
    auto owner = std::make_shared<std::vector<T>>(std::move(values));
    plan->data[index] = {owner->data(), owner};
    return index;
  }
  size_t reserve(size_t bytes) {
    size_t offset = plan->arenaBytes;
    plan->arenaBytes += alignedBytes(bytes);
    return offset;
  }
  std::unique_ptr<Plan> plan = std::make_unique<Plan>();
};

/// A step model on x f32[rows, 3]: loss = sum(x * w), its gradient's SGD step on w f32[1,3] with rate lr, and a count.
inline std::unique_ptr<Plan> linearStepPlan(int64_t rows, bool referenceOnly = false) {
  PlanBuilder b;
  TensorType vector{DType::F32, {1, 3}}, scalar{DType::F32, {}}, count{DType::I64, {}};
  int x = b.input("x", {DType::F32, {rows, 3}});
  int w = b.state<float>("w", vector, {1, 2, 3});
  int lr = b.state<float>("lr", scalar, {0.125f});
  int step = b.state<int64_t>("step", count, {0});
  int axes = b.constant<int64_t>("axes", {DType::I64, {1}}, {0}), one = b.constant<int64_t>("one", count, {1});
  int h = b.value("h", {DType::F32, {rows, 3}}), loss = b.value("loss", scalar), grad = b.value("grad", vector);
  int delta = b.value("delta", vector), newW = b.value("w.next", vector), newStep = b.value("step.next", count);
  Attributes drop;
  drop.set("keepdims", int64_t(0));
  b.step("Mul", 14, {x, w}, {h});
  b.step("ReduceSum", 13, {h}, {loss}, drop);
  b.step("ReduceSum", 13, {x, axes}, {grad});
  b.step("Mul", 14, {grad, lr}, {delta});
  b.step("Sub", 14, {w, delta}, {newW});
  b.step("Add", 14, {step, one}, {newStep});
  b.output("loss", loss);
  b.output("grad", grad);
  b.output("w.next", newW, w);
  b.output("step.next", newStep, step);
  return b.build(referenceOnly);
}

} // namespace recast::test
