#include "ir/io/CheckNames.h"
#include "llvm/Support/JSON.h"

namespace recast::io {

namespace {

struct NameCheck {
  std::string fault;

  void see(const char *what, const std::string &name) {
    if (fault.empty() && !llvm::json::isUTF8(name))
      fault = std::string("the ") + what + " '" + llvm::json::fixUTF8(name) + "'";
  }

  void see(const onnx::ValueInfoProto &value) {
    see("tensor name", value.name());
    for (const auto &dim : value.type().tensor_type().shape().dim())
      see("name of a dimension", dim.dim_param());
  }

  void see(const onnx::NodeProto &node) {
    see("node name", node.name());
    see("operator", node.op_type());
    see("domain", node.domain());
    see("overload", node.overload());
    for (const std::string &name : node.input())
      see("tensor name", name);
    for (const std::string &name : node.output())
      see("tensor name", name);
    for (const auto &attribute : node.attribute()) {
      see("attribute name", attribute.name());
      if (attribute.has_g())
        see(attribute.g());
      for (const auto &graph : attribute.graphs())
        see(graph);
    }
  }

  void see(const onnx::GraphProto &graph) {
    see("graph name", graph.name());
    for (const auto &tensor : graph.initializer())
      see("tensor name", tensor.name());
    for (const auto *values : {&graph.input(), &graph.output(), &graph.value_info()})
      for (const auto &value : *values)
        see(value);
    for (const auto &node : graph.node())
      see(node);
  }
};

} // namespace

std::string nameThatIsNoText(const onnx::ModelProto &model) {
  NameCheck check;
  check.see(model.graph());
  for (const auto &function : model.functions()) {
    check.see("function name", function.name());
    check.see("domain", function.domain());
    for (const auto *names : {&function.input(), &function.output()})
      for (const std::string &name : *names)
        check.see("tensor name", name);
    for (const auto &node : function.node())
      check.see(node);
  }
  for (const auto &entry : model.metadata_props()) {
    check.see("key of metadata", entry.key());
    check.see("metadata", entry.value());
  }
  return check.fault;
}

} // namespace recast::io
