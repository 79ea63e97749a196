#include "ir/io/TrainingInfo.h"
#include "ir/io/InitialValues.h"
#include "ir/io/WireFormat.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/JSON.h"

using namespace llvm;
namespace recast::io {

namespace {

constexpr const char *kState = "recast.state", *kLoss = "recast.loss";

template <typename... Ts> Error error(const Ts &...parts) {
  std::string text;
  raw_string_ostream stream(text);
  (stream << ... << parts);
  return createStringError(text);
}

// --- metadata_props ---

const std::string *metadata(const onnx::ModelProto &model, StringRef key) {
  for (const auto &entry : model.metadata_props())
    if (entry.key() == key)
      return &entry.value();
  return nullptr;
}

void eraseMetadata(onnx::ModelProto &model, StringRef key) {
  auto &entries = *model.mutable_metadata_props();
  for (int i = entries.size() - 1; i >= 0; --i)
    if (entries[i].key() == key)
      entries.DeleteSubrange(i, 1);
}

void setMetadata(onnx::ModelProto &model, StringRef key, std::string value) {
  eraseMetadata(model, key);
  auto &entry = *model.add_metadata_props();
  entry.set_key(key.str());
  entry.set_value(std::move(value));
}

// --- Lists of messages: elements move without being copied, so that pointers to them stay right. ---

template <typename T> std::vector<T *> takeAll(google::protobuf::RepeatedPtrField<T> &field) {
  std::vector<T *> elements(static_cast<size_t>(field.size()));
  field.ExtractSubrange(0, field.size(), elements.data());
  return elements;
}

template <typename T>
void append(google::protobuf::RepeatedPtrField<T> &from, google::protobuf::RepeatedPtrField<T> &to) {
  for (T *element : takeAll(from))
    to.AddAllocated(element);
}

// Elements for which `stays` is false go to `other`.
template <typename T, typename Predicate>
void partition(google::protobuf::RepeatedPtrField<T> &field, google::protobuf::RepeatedPtrField<T> &other,
               Predicate stays) {
  for (T *element : takeAll(field))
    (stays(*element) ? field : other).AddAllocated(element);
}

template <typename T> StringSet<> namesOf(const google::protobuf::RepeatedPtrField<T> &field) {
  StringSet<> names;
  for (const T &element : field)
    names.insert(element.name());
  return names;
}

// --- Reading ---

onnx::TensorProto *findInitializer(onnx::ModelProto &model, onnx::GraphProto &algorithm, StringRef name) {
  for (auto *list : {model.mutable_graph()->mutable_initializer(), algorithm.mutable_initializer()})
    for (auto &tensor : *list)
      if (tensor.name() == name)
        return &tensor;
  return nullptr;
}

Error initialize(onnx::ModelProto &model, onnx::TrainingInfoProto &info) {
  InitialValues values(info.initialization());
  for (const auto &binding : info.initialization_binding()) {
    onnx::TensorProto *target = findInitializer(model, *info.mutable_algorithm(), binding.key());
    if (!target)
      return error("training_info: initialization_binding sets '", binding.key(), "', which is no initializer");
    auto value = values.evaluate(binding.value());
    if (!value)
      return value.takeError();
    if (value->data_type() != target->data_type() || !llvm::equal(value->dims(), target->dims()))
      return error("training_info: initialization_binding sets '", binding.key(), "' to '", binding.value(),
                   "', which has another type or shape");
    *target = std::move(*value);
    target->set_name(binding.key());
  }
  return Error::success();
}

onnx::ValueInfoProto describe(const onnx::TensorProto &tensor, StringRef name) {
  onnx::ValueInfoProto info;
  info.set_name(name.str());
  auto &type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(tensor.data_type());
  type.mutable_shape();
  for (int64_t size : tensor.dims())
    type.mutable_shape()->add_dim()->set_dim_value(size);
  return info;
}

bool isScalarFloat(const onnx::ValueInfoProto &info) {
  const auto &type = info.type().tensor_type();
  switch (type.elem_type()) {
  case onnx::TensorProto::FLOAT:
  case onnx::TensorProto::DOUBLE:
  case onnx::TensorProto::FLOAT16:
  case onnx::TensorProto::BFLOAT16:
    return type.has_shape() && llvm::all_of(type.shape().dim(), [](const auto &dim) { return dim.dim_value() == 1; });
  default:
    return false;
  }
}

// The output called loss, or the only scalar float that updates nothing; "" where that leaves a choice.
std::string guessLoss(const onnx::GraphProto &graph, const StringSet<> &updates) {
  std::string found;
  for (const auto &output : graph.output()) {
    if (output.name() == "loss")
      return output.name();
    if (updates.contains(output.name()) || !isScalarFloat(output))
      continue;
    if (!found.empty())
      return "";
    found = output.name();
  }
  return found;
}

// --- Writing ---

// Names that a node reads, those of its bodies included.
void readNames(const onnx::NodeProto &node, SmallVectorImpl<StringRef> &names) {
  for (const std::string &name : node.input())
    names.push_back(name);
  auto body = [&](const onnx::GraphProto &graph) {
    for (const auto &inner : graph.node())
      readNames(inner, names);
    for (const auto &output : graph.output())
      names.push_back(output.name());
  };
  for (const auto &attribute : node.attribute()) {
    if (attribute.has_g())
      body(attribute.g());
    for (const auto &graph : attribute.graphs())
      body(graph);
  }
}

// All that `targets` depend on: values, and the nodes (by index) that compute them.
void dependencies(const onnx::GraphProto &graph, SmallVector<StringRef> targets, StringSet<> &values,
                  std::vector<bool> &nodes) {
  StringMap<int> producer;
  for (int i = 0; i < graph.node_size(); ++i)
    for (const std::string &output : graph.node(i).output())
      producer[output] = i;
  nodes.assign(static_cast<size_t>(graph.node_size()), false);
  while (!targets.empty()) {
    StringRef name = targets.pop_back_val();
    if (!values.insert(name).second)
      continue;
    auto found = producer.find(name);
    if (found == producer.end() || nodes[static_cast<size_t>(found->second)])
      continue;
    nodes[static_cast<size_t>(found->second)] = true;
    readNames(graph.node(found->second), targets);
  }
}

} // namespace

Error joinTraining(onnx::ModelProto &model) {
  if (model.training_info_size() > 1)
    return error("holds ", model.training_info_size(),
                 " entries of training_info, which alternate; one is read: keep "
                 "one of them");
  onnx::TrainingInfoProto info;
  info.Swap(model.mutable_training_info(0));
  model.clear_training_info();
  if (Error failed = initialize(model, info))
    return failed;
  onnx::GraphProto &graph = *model.mutable_graph(), &algorithm = *info.mutable_algorithm();
  if (algorithm.node_size() == 0 && info.update_binding_size() == 0)
    return Error::success();
  append(*algorithm.mutable_input(), *graph.mutable_input());
  append(*algorithm.mutable_initializer(), *graph.mutable_initializer());
  append(*algorithm.mutable_sparse_initializer(), *graph.mutable_sparse_initializer());
  append(*algorithm.mutable_node(), *graph.mutable_node());
  append(*algorithm.mutable_value_info(), *graph.mutable_value_info());
  StringSet<> outputs = namesOf(graph.output()), inputs = namesOf(graph.input()), updates;
  for (const auto &output : algorithm.output())
    if (outputs.insert(output.name()).second)
      *graph.add_output() = output;
  json::Object state;
  for (const auto &binding : info.update_binding()) {
    onnx::TensorProto *tensor = findInitializer(model, algorithm, binding.key());
    if (!tensor)
      return error("training_info: update_binding updates '", binding.key(), "', which is no initializer");
    if (!state.try_emplace(binding.key(), binding.value()).second)
      return error("training_info: update_binding updates '", binding.key(), "' twice");
    updates.insert(binding.value());
    if (inputs.insert(binding.key()).second)
      *graph.add_input() = describe(*tensor, binding.key());
    if (outputs.insert(binding.value()).second)
      *graph.add_output() = describe(*tensor, binding.value());
  }
  std::string text;
  raw_string_ostream(text) << json::Value(std::move(state));
  setMetadata(model, kState, text);
  if (std::string loss = guessLoss(graph, updates); !metadata(model, kLoss) && !loss.empty())
    setMetadata(model, kLoss, loss);
  return Error::success();
}

Error splitTraining(onnx::ModelProto &model) {
  const std::string *text = metadata(model, kState);
  if (!text)
    return error("is no training step: training-info needs one (metadata_props has no ", kState, ")");
  auto parsed = json::parse(*text);
  if (!parsed)
    return error("metadata_props '", kState, "' is no JSON: ", toString(parsed.takeError()));
  const json::Object *state = parsed->getAsObject();
  if (!state)
    return error("metadata_props '", kState, "' is no JSON object of input names and output names");
  onnx::GraphProto &graph = *model.mutable_graph();
  onnx::TrainingInfoProto &info = *model.add_training_info();
  onnx::GraphProto &algorithm = *info.mutable_algorithm();
  algorithm.set_name("training_step");

  StringMap<std::string> nextOf;
  StringSet<> updates;
  for (const auto &[input, next] : *state) {
    nextOf[StringRef(input)] = next.getAsString().value_or("").str();
    updates.insert(nextOf[StringRef(input)]);
  }
  const std::string *loss = metadata(model, kLoss);
  SmallVector<StringRef> targets;
  for (const auto &output : graph.output())
    if (loss ? output.name() == *loss : !updates.contains(output.name()))
      targets.push_back(output.name());
  StringSet<> isTarget, forward, used;
  for (StringRef target : targets)
    isTarget.insert(target);
  std::vector<bool> isForward, isUsed;
  dependencies(graph, targets, forward, isForward);
  SmallVector<StringRef> all;
  for (const auto &output : graph.output())
    all.push_back(output.name());
  dependencies(graph, all, used, isUsed);
  auto staysIn = [&](const auto &message) {
    return forward.contains(message.name()) || !used.contains(message.name());
  };

  std::vector<onnx::ValueInfoProto *> inputs = takeAll(*graph.mutable_input());
  for (onnx::ValueInfoProto *input : inputs) {
    auto next = nextOf.find(input->name());
    if (next == nextOf.end()) {
      (staysIn(*input) ? graph : algorithm).mutable_input()->AddAllocated(input);
      continue;
    }
    auto &binding = *info.add_update_binding();
    binding.set_key(input->name());
    binding.set_value(next->second);
    delete input;
  }
  partition(*graph.mutable_initializer(), *algorithm.mutable_initializer(), staysIn);
  partition(*graph.mutable_value_info(), *algorithm.mutable_value_info(), staysIn);
  partition(*graph.mutable_output(), *algorithm.mutable_output(),
            [&](const auto &output) { return isTarget.contains(output.name()); });
  size_t index = 0;
  partition(*graph.mutable_node(), *algorithm.mutable_node(), [&](const auto &) { return bool(isForward[index++]); });
  eraseMetadata(model, kState);
  model.set_ir_version(
      std::max<int64_t>(model.ir_version(), onnx::IR_VERSION_2020_5_8)); // the first with training_info
  return Error::success();
}

void inlineTrainingTensors(onnx::ModelProto &model, ArrayRef<char> file) {
  auto fill = [&](onnx::TensorProto &tensor) {
    if (auto token = decodeToken(tensor.raw_data()))
      tensor.set_raw_data(file.data() + token->first, token->second);
  };
  auto sparse = [&](onnx::SparseTensorProto &tensor) {
    fill(*tensor.mutable_values());
    fill(*tensor.mutable_indices());
  };
  std::function<void(onnx::GraphProto &)> walk = [&](onnx::GraphProto &graph) {
    for (auto &tensor : *graph.mutable_initializer())
      fill(tensor);
    for (auto &tensor : *graph.mutable_sparse_initializer())
      sparse(tensor);
    for (auto &node : *graph.mutable_node())
      for (auto &attribute : *node.mutable_attribute()) {
        if (attribute.has_t())
          fill(*attribute.mutable_t());
        for (auto &tensor : *attribute.mutable_tensors())
          fill(tensor);
        if (attribute.has_sparse_tensor())
          sparse(*attribute.mutable_sparse_tensor());
        for (auto &tensor : *attribute.mutable_sparse_tensors())
          sparse(tensor);
        if (attribute.has_g())
          walk(*attribute.mutable_g());
        for (auto &inner : *attribute.mutable_graphs())
          walk(inner);
      }
  };
  for (auto &info : *model.mutable_training_info()) {
    if (info.has_initialization())
      walk(*info.mutable_initialization());
    if (info.has_algorithm())
      walk(*info.mutable_algorithm());
  }
}

} // namespace recast::io
