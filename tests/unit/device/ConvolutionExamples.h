// Convolutions as plans of one step, for tests of devices. Values are small multiples of 1/4: products and sums of them
// are exact in f32, so that every order of summation gives the same bits.
#pragma once
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/table/Convolution.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "tests/unit/reference/ReferenceTest.h"

namespace recast::device::test {

using reference::test::Array;
using reference::test::attributes;
using reference::test::Op;
using Dims = std::vector<int64_t>;

inline Array quarters(DType type, Dims dims, uint64_t seed) {
  Array array = reference::test::randomArray(type, std::move(dims), seed);
  for (size_t i = 0; i < static_cast<size_t>(array.type.elems()); ++i)
    array.set(i, std::floor(array.get(i) * 4) / 4);
  return array;
}

struct ConvolutionExample {
  Op op;
  std::vector<Array> inputs;
  TensorType output;

  StepSpec spec() const { return reference::test::specOf(op, inputs, {output}); }
  Array expected() const { return reference::test::run(op, inputs, {output})[0]; }

  /// Inputs are buffers 0, 1, .., the last is the output.
  Plan plan() const {
    Plan plan;
    plan.device = "cuda";
    Step step;
    step.spec = spec();
    cuda::Program program;
    std::string refusal;
    EXPECT_TRUE(cuda::compile(step.spec, program, refusal)) << refusal;
    step.library = cuda::libraryOf(program);
    auto output = static_cast<int>(inputs.size());
    for (int i = 0; i < output; ++i) {
      plan.buffers.push_back({"in" + std::to_string(i), inputs[static_cast<size_t>(i)].type, Place::Input, 0});
      plan.inputs.push_back(i);
      step.inputs.push_back(i);
    }
    plan.buffers.push_back({"out", this->output, Place::Arena, 0});
    step.outputs = {output};
    step.workspaceOffset = (this->output.bytes() + 63) / 64 * 64;
    step.workspaceBytes = program.workspaceBytes;
    plan.arenaBytes = step.workspaceOffset + step.workspaceBytes;
    plan.outputs = {{"out", output, -1}};
    plan.steps.push_back(std::move(step));
    return plan;
  }

  /// Writes the inputs, runs the executor of plan(), and reads the output.
  Status run(DeviceExecutor &executor, Array &result) const {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (Status status = executor.write(static_cast<int>(i), inputs[i].bytes.data()); !status.ok())
        return status;
    if (Status status = executor.run(); !status.ok())
      return status;
    result = Array(output.dtype, output.dims);
    return executor.read(static_cast<int>(inputs.size()), result.bytes.data());
  }
};

/// Forward, with and without bias, both gradients and the transposed convolution of each shape.
inline std::vector<ConvolutionExample> convolutionExamples(DType type) {
  struct Shape {
    Dims x, w, y;
    Attributes attrs;
  };
  std::vector<Shape> shapes = {
      {{2, 3, 9}, {4, 3, 3}, {2, 4, 7}, {}},                                                          // 1-D
      {{2, 3, 11}, {2, 3, 3}, {2, 2, 5}, attributes({{"strides", Dims{2}}, {"dilations", Dims{1}}})}, //
      {{1, 3, 8, 8}, {4, 3, 3, 3}, {1, 4, 8, 8}, attributes({{"pads", Dims{1, 1, 1, 1}}})},
      {{2, 4, 7, 6},
       {6, 2, 3, 2},
       {2, 6, 4, 4},
       attributes({{"group", int64_t(2)}, {"strides", Dims{2, 2}}, {"pads", Dims{1, 1, 1, 1}}})},
      {{1, 3, 8, 5}, // depthwise and dilated
       {6, 1, 3, 3},
       {1, 6, 6, 5},
       attributes({{"group", int64_t(3)}, {"dilations", Dims{2, 1}}, {"pads", Dims{1, 1, 1, 1}}})},
      // Padding at the end that no window reaches is none.
      {{1, 2, 8, 8}, {2, 2, 3, 3}, {1, 2, 4, 4}, attributes({{"strides", Dims{2, 2}}, {"pads", Dims{1, 1, 0, 0}}})},
      {{1, 1, 3, 4, 5}, {2, 1, 2, 2, 2}, {1, 2, 2, 3, 4}, {}},
      {{2, 2, 5, 4, 3},
       {4, 1, 3, 2, 1},
       {2, 4, 3, 3, 3},
       attributes({{"group", int64_t(2)}, {"strides", Dims{2, 1, 1}}, {"pads", Dims{1, 0, 0, 1, 0, 0}}})}};
  std::vector<ConvolutionExample> all;
  for (const Shape &s : shapes) {
    Array x = quarters(type, s.x, 1), w = quarters(type, s.w, 2), dy = quarters(type, s.y, 3);
    all.push_back({{"Conv", 11, s.attrs}, {x, w}, {type, s.y}});
    all.push_back({{"Conv", 11, s.attrs}, {x, w, quarters(type, {s.y[1]}, 4)}, {type, s.y}});
    all.push_back({{"conv_grad_input", 1, s.attrs, "recast"}, {dy, w}, {type, s.x}});
    all.push_back({{"conv_grad_weight", 1, s.attrs, "recast"}, {x, dy}, {type, s.w}});
    // Of all that have this gradient, the operator is for the one whose size is given.
    Attributes attrs = s.attrs;
    attrs.set("output_shape", Dims(s.x.begin() + 2, s.x.end()));
    all.push_back({{"ConvTranspose", 11, attrs}, {dy, w, quarters(type, {s.x[1]}, 5)}, {type, s.x}});
  }
  return all;
}

/// A result with a bias is rounded twice, once by the convolution and once by the sum.
inline void expectConvolution(const ConvolutionExample &example, const Array &got) {
  DType type = example.output.dtype;
  bool isExact = example.inputs.size() < 3 || type == DType::F32;
  double rounding = type == DType::F16 ? 0x1p-11 : 0x1p-8;
  reference::test::expectNear(got, example.expected().values(), isExact ? 0 : 2 * rounding);
}

} // namespace recast::device::test
