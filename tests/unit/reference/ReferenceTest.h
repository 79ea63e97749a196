// Helpers of the reference evaluator's tests: tensors from literals, and one operator run through reference::create.
#pragma once
#include "runtime/reference/Reference.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

namespace recast::reference::test {

/// As dispatchAny, 8-bit floats too.
template <typename Body> decltype(auto) dispatchEvery(DType type, Body &&body) {
  return isFloat8(type) ? dispatchFloat8(type, body) : dispatchAny(type, body);
}

/// A dense tensor that owns its elements; values go in and out as double.
struct Array {
  TensorType type;
  std::vector<std::byte> bytes;

  /// An absent optional input or output.
  Array() = default;
  Array(DType dtype, std::vector<int64_t> dims) : type{dtype, std::move(dims)}, bytes(type.bytes()) {}
  Array(DType dtype, std::vector<int64_t> dims, const std::vector<double> &values) : Array(dtype, std::move(dims)) {
    EXPECT_EQ(type.elems(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i)
      set(i, values[i]);
  }

  void set(size_t i, double value) {
    dispatchEvery(type.dtype, [&]<typename T>() {
      T element = static_cast<T>(value);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    });
  }
  double get(size_t i) const {
    return dispatchEvery(type.dtype, [&]<typename T>() {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      return static_cast<double>(static_cast<std::conditional_t<std::is_arithmetic_v<T>, T, float>>(element));
    });
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (size_t i = 0; i < static_cast<size_t>(type.elems()); ++i)
      all.push_back(get(i));
    return all;
  }
  TensorRef ref() const { return {type.dtype, type.dims, const_cast<std::byte *>(bytes.data())}; }
};

inline Array f32(std::vector<int64_t> dims, const std::vector<double> &values) { return {DType::F32, dims, values}; }
inline Array f64(std::vector<int64_t> dims, const std::vector<double> &values) { return {DType::F64, dims, values}; }
inline Array i64(std::vector<int64_t> dims, const std::vector<double> &values) { return {DType::I64, dims, values}; }
inline Array boolean(std::vector<int64_t> dims, const std::vector<double> &values) {
  return {DType::Bool, dims, values};
}

/// Values in [-1, 1) that are the same on every machine (splitmix64).
inline Array randomArray(DType dtype, std::vector<int64_t> dims, uint64_t seed) {
  Array array(dtype, std::move(dims));
  for (size_t i = 0; i < static_cast<size_t>(array.type.elems()); ++i) {
    uint64_t z = seed + 0x9e3779b97f4a7c15 * (i + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    array.set(i, static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1);
  }
  return array;
}

inline Attributes attributes(std::initializer_list<std::pair<const char *, Attributes::Value>> list) {
  Attributes attrs;
  for (const auto &[name, value] : list)
    attrs.set(name, value);
  return attrs;
}

/// One operator: version and attributes of a node called "step".
struct Op {
  std::string name;
  int64_t version = 1;
  Attributes attrs = {};
  std::string domain = "";
};

inline StepSpec specOf(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs) {
  StepSpec spec{"step", op.domain, op.name, op.version, op.attrs, {}, outputs, {}};
  for (const Array &input : inputs)
    spec.inputs.push_back(input.type);
  spec.constants.resize(inputs.size());
  return spec;
}

/// Runs on outputs that hold garbage, or that take over the memory of copies of inputs.
inline std::vector<Array> execute(Kernel &kernel, const std::vector<Array> &inputs,
                                  const std::vector<TensorType> &outputs, const std::vector<InPlace> &taken,
                                  Status &status) {
  std::vector<Array> results, copies = inputs;
  std::vector<TensorRef> inputRefs, outputRefs;
  for (const TensorType &type : outputs) {
    results.emplace_back(type.dtype, type.dims);
    std::fill(results.back().bytes.begin(), results.back().bytes.end(), std::byte(0x01));
  }
  for (const Array &input : copies)
    inputRefs.push_back(input.ref());
  for (const Array &result : results)
    outputRefs.push_back(result.ref());
  for (InPlace pair : taken)
    outputRefs[pair.output].data = inputRefs[pair.input].data;
  std::vector<std::byte> workspace(kernel.workspaceBytes() + 64);
  auto aligned = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
  status = kernel.run({inputRefs, outputRefs, {reinterpret_cast<std::byte *>(aligned), kernel.workspaceBytes()}});
  for (InPlace pair : taken)
    results[pair.output].bytes = copies[pair.input].bytes;
  return results;
}

/// What the kernel allows gives the same results: each pair alone, and as many as possible together.
inline void expectInPlace(Kernel &kernel, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs,
                          const std::vector<Array> &expected) {
  std::vector<std::vector<InPlace>> choices(1);
  for (InPlace pair : kernel.inPlace()) {
    ASSERT_EQ(inputs[pair.input].bytes.size(), expected[pair.output].bytes.size());
    choices.push_back({pair});
    bool isFree = true;
    for (InPlace other : choices.front())
      isFree &= other.output != pair.output && other.input != pair.input;
    if (isFree)
      choices.front().push_back(pair);
  }
  for (const std::vector<InPlace> &choice : choices) {
    if (choice.empty())
      continue;
    Status status = Status::success();
    std::vector<Array> results = execute(kernel, inputs, outputs, choice, status);
    EXPECT_TRUE(status.ok());
    for (size_t k = 0; k < results.size(); ++k)
      EXPECT_EQ(results[k].bytes, expected[k].bytes)
          << "output " << k << " where output " << choice[0].output << " lies in input " << choice[0].input;
  }
}

/// True where the run fails with other values too: what fails is the shapes.
inline bool failsWhateverTheValues(Kernel &kernel, std::vector<Array> inputs, const std::vector<TensorType> &outputs) {
  bool always = true;
  for (double value : {0, 1}) {
    for (Array &input : inputs)
      for (size_t i = 0; i < static_cast<size_t>(input.type.elems()) && input.type.present(); ++i)
        input.set(i, value);
    Status status = Status::success();
    execute(kernel, inputs, outputs, {}, status);
    always &= !status.ok();
  }
  return always;
}

/// Runs the kernel in every way that it allows. The status of the run goes to `status`; a refusal fails the test.
inline std::vector<Array> tryRun(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs,
                                 Status &status) {
  std::string refusal;
  std::unique_ptr<Kernel> kernel = create(specOf(op, inputs, outputs), refusal);
  if (!kernel) {
    ADD_FAILURE() << op.name << " was refused: " << refusal;
    return std::vector<Array>(outputs.size());
  }
  std::vector<Array> results = execute(*kernel, inputs, outputs, {}, status);
  if (status.ok())
    expectInPlace(*kernel, inputs, outputs, results);
  else
    EXPECT_TRUE(kernel->mayFail() || failsWhateverTheValues(*kernel, inputs, outputs)) << status.message();
  return results;
}

/// As tryRun; an error fails the test.
inline std::vector<Array> run(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs) {
  Status status = Status::success();
  std::vector<Array> results = tryRun(op, inputs, outputs, status);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return results;
}

/// The refusal of the step, or "".
inline std::string refusalOf(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs) {
  std::string refusal;
  create(specOf(op, inputs, outputs), refusal);
  return refusal;
}

/// |got - want| <= tolerance * max(1, |want|) for every element; NaN matches NaN, infinities their like.
inline void expectNear(const Array &got, const std::vector<double> &want, double tolerance) {
  ASSERT_EQ(got.type.elems(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    double w = want[i], g = got.get(i);
    if ((std::isnan(w) && std::isnan(g)) || w == g)
      continue;
    ASSERT_LE(std::fabs(g - w), tolerance * std::max(1.0, std::fabs(w)))
        << "element " << i << " of " << toString(got.type) << ": " << g << " instead of " << w;
  }
}
inline void expectEqual(const Array &got, const std::vector<double> &want) { expectNear(got, want, 0); }

} // namespace recast::reference::test
