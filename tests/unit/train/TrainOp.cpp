#include "tests/unit/train/TrainOp.h"
#include "ir/io/Load.h"
#include "ir/io/Save.h"
#include "mlir/IR/MLIRContext.h"
#include "onnx/onnx_pb.h"
#include "runtime/compile/Compile.h"
#include "runtime/exec/Executor.h"
#include "llvm/Support/Error.h"
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace recast::train::test {

namespace {

namespace fs = std::filesystem;

/// A folder that is gone with the object.
struct Folder {
  fs::path path;
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "recast-train-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
};

std::string nameOf(size_t i) { return "x" + std::to_string(i); }

void setAttribute(onnx::AttributeProto &proto, const Attribute &attribute) {
  proto.set_name(attribute.name);
  if (const auto *integer = std::get_if<int64_t>(&attribute.value)) {
    proto.set_type(onnx::AttributeProto::INT);
    proto.set_i(*integer);
  } else if (const auto *number = std::get_if<double>(&attribute.value)) {
    proto.set_type(onnx::AttributeProto::FLOAT);
    proto.set_f(static_cast<float>(*number));
  } else if (const auto *text = std::get_if<std::string>(&attribute.value)) {
    proto.set_type(onnx::AttributeProto::STRING);
    proto.set_s(*text);
  } else {
    proto.set_type(onnx::AttributeProto::INTS);
    for (int64_t integer : std::get<std::vector<int64_t>>(attribute.value))
      proto.add_ints(integer);
  }
}

/// One node `recast.<op>` over inputs x0, x1, ...; outputs y0, y1, ...
onnx::ModelProto modelOf(const Case &c, const std::vector<Array> &operands, int64_t opset) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  for (auto [domain, version] : {std::pair<const char *, int64_t>("", opset), {"recast", 1}}) {
    auto *import = model.add_opset_import();
    import->set_domain(domain);
    import->set_version(version);
  }
  onnx::GraphProto &graph = *model.mutable_graph();
  graph.set_name("train");
  onnx::NodeProto &node = *graph.add_node();
  node.set_domain("recast");
  node.set_op_type(c.op);
  node.set_name(c.op);
  for (size_t i = 0; i < operands.size(); ++i) {
    node.add_input(c.operands[i].isAbsent ? "" : nameOf(i));
    if (c.operands[i].isAbsent)
      continue;
    const TensorType &type = operands[i].type;
    if (c.operands[i].isConstant) {
      onnx::TensorProto &tensor = *graph.add_initializer();
      tensor.set_name(nameOf(i));
      tensor.set_data_type(static_cast<int>(type.dtype));
      for (int64_t dim : type.dims)
        tensor.add_dims(dim);
      tensor.set_raw_data(operands[i].bytes.data(), operands[i].bytes.size());
      continue;
    }
    onnx::ValueInfoProto &input = *graph.add_input();
    input.set_name(nameOf(i));
    auto &tensor = *input.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(static_cast<int>(type.dtype));
    tensor.mutable_shape();
    for (int64_t dim : type.dims)
      tensor.mutable_shape()->add_dim()->set_dim_value(dim);
  }
  for (unsigned i = 0; i < c.results; ++i) {
    node.add_output("y" + std::to_string(i));
    graph.add_output()->set_name("y" + std::to_string(i));
  }
  for (const Attribute &attribute : c.attributes)
    setAttribute(*node.add_attribute(), attribute);
  return model;
}

bool write(const onnx::ModelProto &model, const fs::path &path) {
  std::ofstream stream(path, std::ios::binary);
  return model.SerializeToOstream(&stream);
}

/// Writes the bodies into the model, as the exporter does for every file, and calls them by names of another domain.
std::string withBodies(const fs::path &from, const fs::path &to) {
  mlir::DialectRegistry registry;
  io::registerDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  std::string said;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic &diagnostic) { said += diagnostic.str(); });
  auto module = io::loadModel(context, from.string());
  if (!module)
    return "loading: " + said;
  if (auto error = io::saveModel(*module, to.string(), from.string()))
    return "saving: " + said + llvm::toString(std::move(error));
  onnx::ModelProto model;
  std::ifstream stream(to, std::ios::binary);
  if (!model.ParseFromIstream(&stream))
    return "no model was written";
  if (model.functions().empty())
    return "the model has no function";
  const std::string other = "standard";
  for (auto *imports : {model.mutable_opset_import()})
    for (auto &import : *imports)
      if (import.domain() == "recast")
        import.set_domain(other);
  for (auto &function : *model.mutable_functions()) {
    function.set_domain(other);
    for (const auto &node : function.node())
      if (!node.domain().empty())
        return "the body calls " + node.domain() + "." + node.op_type();
  }
  for (auto &node : *model.mutable_graph()->mutable_node())
    if (node.domain() == "recast")
      node.set_domain(other);
  return write(model, to) ? "" : "the model cannot be written again";
}

std::vector<Array> runModel(const fs::path &path, const Case &c, const std::vector<Array> &operands,
                            bool expectsKernel) {
  auto model = Model::load(path.string());
  if (!model) {
    ADD_FAILURE() << model.message();
    return {};
  }
  auto plan = (*model)->compile({.referenceOnly = true});
  if (!plan) {
    ADD_FAILURE() << plan.message();
    return {};
  }
  for (const Step &step : (*plan)->steps) {
    bool isKernel = step.spec.domain == "recast";
    EXPECT_EQ(isKernel, expectsKernel) << "runs " << step.spec.domain << "." << step.spec.op;
    if (isKernel != expectsKernel)
      return {};
  }
  auto executor = Executor::create(**plan, /*referenceOnly=*/true);
  if (!executor) {
    ADD_FAILURE() << executor.message();
    return {};
  }
  for (size_t i = 0; i < operands.size(); ++i)
    if (int buffer = c.operands[i].isAbsent || c.operands[i].isConstant ? -1 : (*executor)->find(nameOf(i));
        buffer >= 0)
      std::memcpy((*executor)->tensor(buffer).data, operands[i].bytes.data(), operands[i].bytes.size());
  if (Status status = (*executor)->run(); !status.ok()) {
    ADD_FAILURE() << status.message();
    return {};
  }
  std::vector<Array> results;
  for (unsigned i = 0; i < c.results; ++i) {
    TensorRef tensor = (*executor)->tensor((*executor)->find("y" + std::to_string(i)));
    Array &result = results.emplace_back(tensor.dtype, std::vector<int64_t>(tensor.dims.begin(), tensor.dims.end()));
    std::memcpy(result.bytes.data(), tensor.data, result.bytes.size());
  }
  return results;
}

} // namespace

std::vector<Array> makeOperands(const Case &c, DType type, uint64_t seed) {
  std::vector<Array> arrays;
  for (const Operand &operand : c.operands) {
    if (operand.isAbsent) {
      arrays.emplace_back();
      continue;
    }
    DType dtype = operand.dtype == DType::Undefined ? type : operand.dtype;
    Array &array = arrays.emplace_back(dtype, operand.dims);
    Array random = reference::test::randomArray(DType::F64, operand.dims, seed + 1000 * arrays.size());
    for (size_t i = 0; i < static_cast<size_t>(array.type.elems()); ++i)
      array.set(i, operand.values.empty() ? operand.low + (random.get(i) + 1) / 2 * (operand.high - operand.low)
                                          : operand.values[i]);
  }
  return arrays;
}

std::vector<Array> runNative(const Case &c, const std::vector<Array> &operands, int64_t opset) {
  Folder folder;
  EXPECT_TRUE(write(modelOf(c, operands, opset), folder.path / "native.onnx"));
  return runModel(folder.path / "native.onnx", c, operands, /*expectsKernel=*/true);
}

std::vector<Array> runBody(const Case &c, const std::vector<Array> &operands, int64_t opset) {
  Folder folder;
  EXPECT_TRUE(write(modelOf(c, operands, opset), folder.path / "native.onnx"));
  if (std::string problem = withBodies(folder.path / "native.onnx", folder.path / "body.onnx"); !problem.empty()) {
    ADD_FAILURE() << problem;
    return {};
  }
  return runModel(folder.path / "body.onnx", c, operands, /*expectsKernel=*/false);
}

} // namespace recast::train::test
