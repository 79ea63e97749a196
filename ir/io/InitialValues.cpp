#include "ir/io/InitialValues.h"
#include "onnx/defs/tensor_proto_util.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/xxhash.h"
#include <cmath>
#include <numbers>
#include <optional>
#include <random>

using namespace llvm;
namespace recast::io {

namespace {

Error refuse(const onnx::NodeProto &node, const Twine &why) {
  StringRef label = node.name().empty() && node.output_size() ? StringRef(node.output(0)) : StringRef(node.name());
  return createStringError("training_info: node '" + label + "' (" + node.op_type() + ") of the initialization " + why);
}

const onnx::AttributeProto *attribute(const onnx::NodeProto &node, StringRef name) {
  for (const auto &candidate : node.attribute())
    if (candidate.name() == name)
      return &candidate;
  return nullptr;
}

float number(const onnx::NodeProto &node, StringRef name, float fallback) {
  const auto *found = attribute(node, name);
  return found ? found->f() : fallback;
}

std::optional<int64_t> elementsOf(const onnx::TensorProto &tensor) {
  int64_t count = 1;
  for (int64_t size : tensor.dims())
    if (size < 0 || __builtin_mul_overflow(count, size, &count))
      return std::nullopt;
  return count;
}

// One number in the tensor's floating-point type, little endian; false for other types.
bool appendFloat(int32_t type, double value, std::string &bytes) {
  const fltSemantics *semantics = type == onnx::TensorProto::FLOAT      ? &APFloat::IEEEsingle()
                                  : type == onnx::TensorProto::DOUBLE   ? &APFloat::IEEEdouble()
                                  : type == onnx::TensorProto::FLOAT16  ? &APFloat::IEEEhalf()
                                  : type == onnx::TensorProto::BFLOAT16 ? &APFloat::BFloat()
                                                                        : nullptr;
  if (!semantics)
    return false;
  APFloat converted(value);
  bool inexact;
  converted.convert(*semantics, APFloat::rmNearestTiesToEven, &inexact);
  APInt bits = converted.bitcastToAPInt();
  uint64_t word = bits.getZExtValue();
  bytes.append(reinterpret_cast<const char *>(&word), bits.getBitWidth() / 8);
  return true;
}

Expected<onnx::TensorProto> constant(const onnx::NodeProto &node) {
  onnx::TensorProto tensor;
  auto scalarOrVector = [&](int32_t type, bool isVector, auto &&numbers) {
    tensor.set_data_type(type);
    if (isVector)
      tensor.add_dims(static_cast<int64_t>(numbers.size()));
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(numbers[0])>>)
      tensor.mutable_float_data()->Add(numbers.begin(), numbers.end());
    else
      tensor.mutable_int64_data()->Add(numbers.begin(), numbers.end());
    return tensor;
  };
  if (const auto *value = attribute(node, "value"))
    return value->t();
  if (const auto *value = attribute(node, "value_float"))
    return scalarOrVector(onnx::TensorProto::FLOAT, false, std::vector<float>{value->f()});
  if (const auto *value = attribute(node, "value_floats"))
    return scalarOrVector(onnx::TensorProto::FLOAT, true, value->floats());
  if (const auto *value = attribute(node, "value_int"))
    return scalarOrVector(onnx::TensorProto::INT64, false, std::vector<int64_t>{value->i()});
  if (const auto *value = attribute(node, "value_ints"))
    return scalarOrVector(onnx::TensorProto::INT64, true, value->ints());
  return refuse(node, "holds no tensor of numbers");
}

// Uniform in (0, 1) with 53 bits; the draws of std::uniform_real_distribution differ between libraries.
double uniform(std::mt19937_64 &random) { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; }

Expected<onnx::TensorProto> randomTensor(const onnx::NodeProto &node) {
  onnx::TensorProto tensor;
  const auto *type = attribute(node, "dtype"), *shape = attribute(node, "shape"), *seed = attribute(node, "seed");
  tensor.set_data_type(type ? static_cast<int32_t>(type->i()) : onnx::TensorProto::FLOAT);
  if (shape)
    *tensor.mutable_dims() = shape->ints();
  auto count = elementsOf(tensor);
  if (!shape || !count)
    return refuse(node, "has no valid shape");
  std::mt19937_64 random(seed ? static_cast<uint64_t>(static_cast<double>(seed->f()) * 0x1p32)
                              : xxh3_64bits(node.output(0)));
  std::string &bytes = *tensor.mutable_raw_data();
  for (int64_t i = 0; i < *count; ++i) {
    double value;
    if (node.op_type() == "RandomUniform") {
      double low = number(node, "low", 0), high = number(node, "high", 1);
      value = low + (high - low) * uniform(random);
    } else { // Box and Muller 1958
      double radius = std::sqrt(-2 * std::log(uniform(random))), angle = 2 * std::numbers::pi * uniform(random);
      value = number(node, "mean", 0) + static_cast<double>(number(node, "scale", 1)) * radius * std::cos(angle);
    }
    if (!appendFloat(tensor.data_type(), value, bytes))
      return refuse(node, "has the element type " + Twine(tensor.data_type()) + "; a floating-point type is needed");
  }
  return tensor;
}

// Repeats the one element of `value`, or the f32 0 where there is none.
Expected<onnx::TensorProto> filled(const onnx::NodeProto &node, const onnx::TensorProto &shape) {
  onnx::TensorProto tensor, element;
  element.set_data_type(onnx::TensorProto::FLOAT);
  element.add_float_data(0);
  if (const auto *value = attribute(node, "value"))
    element = value->t();
  for (int64_t size : onnx::ParseData<int64_t>(&shape))
    tensor.add_dims(size);
  auto count = elementsOf(tensor);
  if (!count)
    return refuse(node, "has no valid shape");
  tensor.set_data_type(element.data_type());
  std::string &bytes = *tensor.mutable_raw_data();
  for (int64_t i = 0; i < *count; ++i) {
    if (element.has_raw_data())
      bytes += element.raw_data();
    else if (element.data_type() == onnx::TensorProto::INT64 && element.int64_data_size() == 1)
      bytes.append(reinterpret_cast<const char *>(element.int64_data().data()), sizeof(int64_t));
    else if (element.data_type() == onnx::TensorProto::FLOAT && element.float_data_size() == 1)
      appendFloat(element.data_type(), element.float_data(0), bytes);
    else if (element.data_type() == onnx::TensorProto::DOUBLE && element.double_data_size() == 1)
      appendFloat(element.data_type(), element.double_data(0), bytes);
    else
      return refuse(node, "fills with a value of the element type " + Twine(element.data_type()) +
                              ", which is read from raw data only");
  }
  return tensor;
}

constexpr int kMaxDepth = 10000; ///< Of chains of Identity: a cycle ends here.

} // namespace

InitialValues::InitialValues(const onnx::GraphProto &graph) {
  for (const auto &node : graph.node())
    for (const std::string &output : node.output())
      producers[output] = &node;
  for (const auto &tensor : graph.initializer())
    initializers[tensor.name()] = &tensor;
}

Expected<onnx::TensorProto> InitialValues::evaluate(const std::string &name) const { return evaluate(name, 0); }

Expected<onnx::TensorProto> InitialValues::evaluate(const std::string &name, int depth) const {
  if (auto found = initializers.find(name); found != initializers.end())
    return *found->second;
  const onnx::NodeProto *node = producers.lookup(name);
  if (!node || depth > kMaxDepth)
    return createStringError("training_info: the initialization does not compute '" + name + "'");
  StringRef op = node->op_type();
  if (op == "Constant")
    return constant(*node);
  if (op == "RandomNormal" || op == "RandomUniform")
    return randomTensor(*node);
  if ((op == "Identity" || op == "ConstantOfShape") && node->input_size() == 1) {
    auto input = evaluate(node->input(0), depth + 1);
    if (!input || op == "Identity")
      return input;
    return filled(*node, *input);
  }
  return refuse(*node,
                "is neither a constant nor a random tensor: run the initialization elsewhere, and put its results "
                "into the initializers");
}

} // namespace recast::io
