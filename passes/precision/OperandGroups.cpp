#include "passes/precision/OperandGroups.h"
#include "onnx/defs/data_type_utils.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

using Formal = onnx::OpSchema::FormalParameter;

bool allows(const Formal &formal, Type type) {
  static const onnx::DataType f32 = onnx::Utils::DataTypeUtils::ToType("tensor(float)"),
                              f16 = onnx::Utils::DataTypeUtils::ToType("tensor(float16)"),
                              bf16 = onnx::Utils::DataTypeUtils::ToType("tensor(bfloat16)");
  return formal.GetTypes().count(type.isF32() ? f32 : type.isF16() ? f16 : bf16) != 0;
}

// Running statistics are state and stay f32: from opset 14 on their type is a variable of its own.
constexpr int kBatchNormalizationWithOwnStatisticsType = 14;

} // namespace

SmallVector<OperandGroup> operandGroups(Node node, const onnx::OpSchema &schema, Type low) {
  const std::vector<Formal> &formals = schema.inputs();
  SmallVector<OperandGroup> groups;
  bool isBatchNormalization = node.is("BatchNormalization");
  for (unsigned i = 0; i < node.numInputs() && !formals.empty(); ++i) {
    const Formal &formal = formals[std::min<size_t>(i, formals.size() - 1)];
    Value operand = node.input(i);
    if (!operand || !isFloatTensor(operand))
      continue;
    std::string variable = formal.GetTypeStr();
    bool isOutput = llvm::any_of(schema.outputs(), [&](const Formal &out) { return out.GetTypeStr() == variable; });
    if (formal.GetOption() == onnx::OpSchema::Variadic && !formal.GetIsHomogeneous())
      variable += std::to_string(i);
    auto group = llvm::find_if(groups, [&](const OperandGroup &g) { return g.variable == variable; });
    if (group == groups.end()) {
      OperandGroup added;
      added.variable = variable;
      added.isComputed = isBatchNormalization ? i == 0 : isOutput || variable == formals[0].GetTypeStr();
      added.isResult = isOutput;
      added.allowsLow = allows(formal, low) &&
                        !(isBatchNormalization && schema.SinceVersion() < kBatchNormalizationWithOwnStatisticsType);
      added.allowsF32 = allows(formal, Float32Type::get(low.getContext()));
      groups.push_back(std::move(added));
      group = std::prev(groups.end());
    }
    group->operands.push_back(i);
  }
  return groups;
}

int64_t firstOpsetAllowing(StringRef op, int64_t opset, Type low) {
  int latest = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
  for (int version = static_cast<int>(opset) + 1; version <= latest; ++version)
    if (const onnx::OpSchema *schema = onnx::OpSchemaRegistry::Schema(op.str(), version, "");
        schema && !schema->inputs().empty() && allows(schema->inputs()[0], low))
      return version;
  return 0;
}

} // namespace recast::precision
