// CUDA kernels, as emulated host code and as PTX, against the reference evaluator.
#pragma once
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "tests/ptx/PtxProgram.h"
#include "tests/unit/reference/ReferenceTest.h"

namespace recast::cuda::test {

using reference::test::Array;
using reference::test::attributes;
using reference::test::boolean;
using reference::test::f32;
using reference::test::i64;
using reference::test::Op;
using reference::test::randomArray;
using Dims = std::vector<int64_t>;

/// As reference::test::specOf; the inputs from `firstConstant` on are constants of the plan.
inline StepSpec specOf(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs,
                       size_t firstConstant) {
  StepSpec spec = reference::test::specOf(op, inputs, outputs);
  for (size_t i = firstConstant; i < inputs.size(); ++i)
    if (inputs[i].type.present())
      spec.constants[i] = inputs[i].ref();
  return spec;
}

/// The same bits, but for those of what is no number: the processor's own differ from a GPU's.
inline void expectSameNumbers(const std::vector<Array> &got, const std::vector<Array> &want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k)
    for (size_t i = 0, size = byteSize(got[k].type.dtype);
         got[k].bytes != want[k].bytes && i * size < got[k].bytes.size(); ++i)
      if (std::memcmp(&got[k].bytes[i * size], &want[k].bytes[i * size], size) != 0)
        ASSERT_TRUE(std::isnan(got[k].get(i)) && std::isnan(want[k].get(i)))
            << "element " << i << " of output " << k << ": " << got[k].get(i) << " by PTX, " << want[k].get(i)
            << " by the emulation";
}

/// The kernels' PTX gives what the emulation gave, or the same error.
inline void expectSameByPtx(const StepSpec &spec, const std::vector<Array> &inputs,
                            const std::vector<TensorType> &outputs, const std::vector<Array> &results,
                            const Status &status) {
  std::string refusal;
  std::unique_ptr<recast::Kernel> kernel = emulation::create(spec, refusal, ptx::runBound);
  for (int order = 0; order < 2; ++order) { // Blocks and threads run forwards and backwards in turn.
    Status byPtx = Status::success();
    std::vector<Array> got = reference::test::execute(*kernel, inputs, outputs, {}, byPtx);
    ASSERT_EQ(byPtx.ok() ? "" : byPtx.message(), status.ok() ? "" : status.message());
    if (status.ok())
      expectSameNumbers(got, results);
  }
}

/// Runs the emulated kernel in every way that it allows; the status of the first goes to `status`.
inline std::vector<Array> runEmulated(const Op &op, const std::vector<Array> &inputs,
                                      const std::vector<TensorType> &outputs, size_t firstConstant, Status &status) {
  StepSpec spec = specOf(op, inputs, outputs, firstConstant);
  std::string refusal;
  std::unique_ptr<recast::Kernel> kernel = emulation::create(spec, refusal);
  if (!kernel) {
    ADD_FAILURE() << op.name << " was refused: " << refusal;
    return {};
  }
  std::vector<Array> results = reference::test::execute(*kernel, inputs, outputs, {}, status);
  expectSameByPtx(spec, inputs, outputs, results, status);
  if (status.ok()) {
    reference::test::expectInPlace(*kernel, inputs, outputs, results);
    // Blocks and threads in the other order give the same bits.
    Status again = Status::success();
    std::vector<Array> others = reference::test::execute(*kernel, inputs, outputs, {}, again);
    EXPECT_TRUE(again.ok());
    for (size_t k = 0; k < results.size(); ++k)
      EXPECT_EQ(results[k].bytes, others[k].bytes) << "output " << k << " depends on the order of threads";
  }
  return results;
}

/// |got - want| <= tolerance * max(1, |want|) for every element of every output; a tolerance of 0 compares bits.
inline void compare(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs,
                    double tolerance = 0, size_t firstConstant = SIZE_MAX) {
  std::string trace = op.name;
  for (const Array &input : inputs)
    trace += " " + toString(input.type);
  SCOPED_TRACE(trace);
  Status status = Status::success();
  std::vector<Array> got = runEmulated(op, inputs, outputs, firstConstant, status);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<Array> want = reference::test::run(op, inputs, outputs);
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k) {
    if (!outputs[k].present())
      continue;
    SCOPED_TRACE("output " + std::to_string(k));
    if (tolerance == 0)
      EXPECT_EQ(got[k].bytes, want[k].bytes);
    else
      reference::test::expectNear(got[k], want[k].values(), tolerance);
  }
}

/// Random bits, for kernels that only move elements.
inline Array randomBits(DType dtype, Dims dims, uint64_t seed) {
  Array array(dtype, std::move(dims));
  for (size_t i = 0; i < array.bytes.size(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    array.bytes[i] = dtype == DType::Bool ? std::byte(seed >> 63) : std::byte(seed >> 56);
  }
  return array;
}

} // namespace recast::cuda::test
