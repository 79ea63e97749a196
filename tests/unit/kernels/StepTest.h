// Helpers of the kernel tests: tensors that own their memory, and one step run by one kernel.
#pragma once
#include "runtime/kernels/Kernel.h"
#include "runtime/reference/Reference.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

namespace recast::test {

/// A dense tensor that owns its elements; values go in and out as double.
struct Array {
  TensorType type;
  std::vector<std::byte> bytes;

  explicit Array(TensorType t) : type(std::move(t)), bytes(type.bytes()) {}
  Array(TensorType t, const std::vector<double> &values) : Array(std::move(t)) {
    for (size_t i = 0; i < values.size(); ++i)
      set(static_cast<int64_t>(i), values[i]);
  }
  void set(int64_t i, double value) {
    dispatchAny(type.dtype, [&]<typename T>() {
      T element = static_cast<T>(value);
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &element, sizeof(T));
    });
  }
  double get(int64_t i) const {
    return dispatchAny(type.dtype, [&]<typename T>() {
      T element;
      std::memcpy(&element, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
      return static_cast<double>(element);
    });
  }
  std::vector<double> values() const {
    std::vector<double> result;
    for (int64_t i = 0; i < type.elems(); ++i)
      result.push_back(get(i));
    return result;
  }
  TensorRef ref() const { return {type.dtype, type.dims, const_cast<std::byte *>(bytes.data())}; }
};

/// Values in [-1, 1) from splitmix64: the same on every machine.
inline Array randomArray(TensorType type, uint64_t seed) {
  Array array(std::move(type));
  for (int64_t i = 0; i < array.type.elems(); ++i) {
    uint64_t z = seed + 0x9e3779b97f4a7c15 * static_cast<uint64_t>(i + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    array.set(i, static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1);
  }
  return array;
}

/// The same values in another type (rounded where it is narrower).
inline Array convert(const Array &from, DType type) { return {TensorType{type, from.type.dims}, from.values()}; }

inline StepSpec makeSpec(std::string domain, std::string op, int64_t version, Attributes attrs,
                         std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
  StepSpec spec{"step",           std::move(domain), std::move(op),      version,
                std::move(attrs), std::move(inputs), std::move(outputs), {}};
  spec.constants.resize(spec.inputs.size());
  return spec;
}

inline const reference::Entry *referenceEntry(const StepSpec &spec) {
  for (auto entries : {reference::productEntries(), reference::convolutionEntries()})
    for (const reference::Entry &entry : entries)
      if (entry.domain == spec.domain && entry.op == spec.op && entry.sinceFirst <= spec.version &&
          spec.version <= entry.sinceLast)
        return &entry;
  return nullptr;
}

/// Calls run(args) with the inputs, fresh outputs filled with garbage, and a workspace; returns the outputs.
template <typename Run>
std::vector<Array> runStep(const StepSpec &spec, const std::vector<Array> &inputs, size_t workspaceBytes, Run &&run) {
  std::vector<Array> outputs;
  std::vector<TensorRef> inputRefs, outputRefs;
  for (const TensorType &type : spec.outputs) {
    outputs.emplace_back(type);
    std::memset(outputs.back().bytes.data(), 0x7f, outputs.back().bytes.size());
  }
  for (const Array &input : inputs)
    inputRefs.push_back(input.type.present() ? input.ref() : TensorRef());
  for (const Array &output : outputs)
    outputRefs.push_back(output.type.present() ? output.ref() : TensorRef());
  std::vector<std::byte> memory(workspaceBytes + 64);
  auto *start = reinterpret_cast<std::byte *>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  Status status = run(KernelArgs{inputRefs, outputRefs, {start, workspaceBytes}});
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return outputs;
}

inline std::vector<Array> runReference(const StepSpec &spec, const std::vector<Array> &inputs) {
  const reference::Entry *entry = referenceEntry(spec);
  if (!entry) {
    ADD_FAILURE() << "no reference entry for " << spec.op;
    return {};
  }
  if (std::string why = entry->refuses ? entry->refuses(spec) : ""; !why.empty()) {
    ADD_FAILURE() << spec.op << ": " << why;
    return {};
  }
  return runStep(spec, inputs, entry->workspaceBytes ? entry->workspaceBytes(spec) : 0,
                 [&](const KernelArgs &args) { return entry->run(spec, args); });
}

inline std::vector<TensorType> typesOf(const std::vector<Array> &arrays) {
  std::vector<TensorType> types;
  for (const Array &array : arrays)
    types.push_back(array.type);
  return types;
}

/// |got - want| <= tolerance * max(1, |want|) for every element.
inline void expectNear(const Array &got, const std::vector<double> &want, double tolerance) {
  ASSERT_EQ(got.type.elems(), static_cast<int64_t>(want.size()));
  for (int64_t i = 0; i < got.type.elems(); ++i) {
    double w = want[static_cast<size_t>(i)], g = got.get(i);
    if (std::isnan(w) && std::isnan(g))
      continue;
    ASSERT_NEAR(g, w, tolerance * std::max(1.0, std::fabs(w))) << "element " << i << " of " << toString(got.type);
  }
}

/// sum(weights * f(x)) for the step with input `k` replaced: the scalar function of the finite differences.
inline double weighted(const StepSpec &spec, const std::vector<Array> &inputs, const Array &weights) {
  double sum = 0;
  Array y = runReference(spec, inputs)[0];
  for (int64_t i = 0; i < y.type.elems(); ++i)
    sum += y.get(i) * weights.get(i);
  return sum;
}

/// Central differences of weighted() in every element of input `k` (f64). The step's own error is about
/// h^2 f''' + 1e-16 / h: with h = 1e-5 below 1e-9 for values near 1.
inline std::vector<double> differences(const StepSpec &spec, std::vector<Array> inputs, size_t k,
                                       const Array &weights) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient;
  for (int64_t i = 0; i < inputs[k].type.elems(); ++i) {
    double x = inputs[k].get(i);
    inputs[k].set(i, x + kStep);
    double above = weighted(spec, inputs, weights);
    inputs[k].set(i, x - kStep);
    double below = weighted(spec, inputs, weights);
    inputs[k].set(i, x);
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

} // namespace recast::test
