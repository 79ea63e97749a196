// recast-operators: what is known of each operator of the dialects, as the page docs/operators.md. A gap that
// Gaps.cpp does not declare is an error, and so is one that is none any more.
#include "ir/cost/Formulas.h"
#include "ir/io/Load.h"
#include "ir/onnx/Definitions.h"
#include "ir/onnx/ExpandFunction.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/gradient/Rules.h"
#include "runtime/fusion/Translate.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/reference/Reference.h"
#include "tools/common/Diagnostics.h"
#include "tools/recast-operators/Gaps.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MemoryBuffer.h"
#include <set>

using namespace mlir;
using namespace recast;
using namespace recast::onnx_ir;
namespace cl = llvm::cl;

namespace {

constexpr int kOldestOpset = 7; ///< Before, attributes stood where operands are now, and broadcasting had an axis.
constexpr llvm::StringLiteral kTool = "recast-operators";

cl::OptionCategory category("Options of recast-operators");
cl::opt<std::string> check("check", cl::value_desc("FILE"), cl::cat(category),
                           cl::desc("Compare the page with FILE instead of printing it"));

/// One operator at one version, in a graph of its own, with as many operands as any operator of the dialects takes.
class Sample {
public:
  Sample(MLIRContext &context, OperationName name, int64_t version, unsigned results = 1)
      : module(ModuleOp::create(UnknownLoc::get(&context))) {
    OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
    Attribute opset[] = {b.getStringAttr(""), b.getI64IntegerAttr(version)};
    (*module)->setAttr("onnx.opsets", b.getArrayAttr(b.getArrayAttr(opset)));
    auto graph = GraphOp::create(b, b.getUnknownLoc(), b.getDictionaryAttr({}));
    Block *block = b.createBlock(&graph.getBody());
    OperationState state(b.getUnknownLoc(), name);
    Type type = RankedTensorType::get({1, 1, 1, 1}, b.getF32Type());
    for (unsigned i = 0; i < kOperands; ++i)
      state.addOperands(block->addArgument(type, b.getUnknownLoc()));
    state.addAttribute("to", b.getI64IntegerAttr(onnx::TensorProto::FLOAT8E4M3FN));
    state.addTypes(SmallVector<Type>(results, type));
    op = b.create(state);
  }
  Node node() const { return op; }

  static constexpr unsigned kOperands = 13;

private:
  OwningOpRef<ModuleOp> module;
  Operation *op;
};

/// One row: what each column says, and the versions that lack it.
struct Row {
  std::string op;
  struct Cell {
    llvm::StringLiteral column;
    std::string text; ///< Empty where no version has it.
    SmallVector<int64_t> missing;
  };
  SmallVector<int64_t> versions;
  std::vector<Cell> cells;

  std::string missingText(const Cell &cell) const {
    if (cell.missing.size() == versions.size())
      return "all";
    return llvm::join(llvm::map_range(cell.missing, [](int64_t v) { return std::to_string(v); }), ", ");
  }
};

std::string gradientOf(Node node) {
  const gradient::Rule *rule = gradient::findRule(node);
  if (rule)
    return rule->kind == gradient::Kind::Zero ? "zero" : "rule";
  if (const onnx::OpSchema *schema = node.schema(); schema && schema->max_input() == 0)
    return "no inputs";
  return node.domain().empty() && hasFunctionBody(node) ? "its definition" : "";
}

StepSpec specOf(Node node) {
  StepSpec spec;
  spec.domain = node.domain().str();
  spec.op = node.opType().str();
  spec.version = node.sinceVersion();
  return spec;
}

std::string kernelOf(Node node) {
  StepSpec spec = specOf(node);
  Facts facts = cast<NodeInterface>(node.operation()).facts();
  if (facts.work == Work::Control)
    return "executor";
  if (reference::find(spec))
    return "yes";
  if (isa<ConstantOp, ConstantOfShapeOp>(node.operation()))
    return "folded";
  return node.domain() == "recast" || hasFunctionBody(node) ? "its definition" : "";
}

/// In the order in which the compiler asks (runtime/compile/Cuda.cpp).
std::string cudaOf(Node node) {
  StepSpec spec = specOf(node);
  Facts facts = cast<NodeInterface>(node.operation()).facts();
  if (isa<ScanOp>(node.operation()))
    return "executor";
  if (facts.work == Work::Control)
    return "";
  if (facts.view)
    return "view";
  SmallVector<StringRef> takers;
  if (fusion::hasForm(spec))
    takers.push_back("region");
  if (const cuda::Row *row = cuda::findRow(spec))
    takers.push_back(llvm::any_of(cuda::productRows(), [&](const cuda::Row &product) { return product.op == row->op; })
                         ? "cuBLASLt"
                         : "CUDA C++");
  if (!takers.empty())
    return llvm::join(takers, ", ");
  if (isa<ConstantOp, ConstantOfShapeOp, ShapeOp, SizeOp>(node.operation()))
    return "folded";
  return node.domain() == "recast" || mayHaveDefinition(node) || hasFunctionBody(node) ? "its definition" : "";
}

std::string costOf(Node node) {
  if (cost::findFormula(node))
    return (cost::workName(cost::findFormula(node)->work) + ", formula").str();
  Facts facts = cast<NodeInterface>(node.operation()).facts();
  if (facts.work == Work::Unknown)
    return "";
  return cost::workName(facts.work).str() + (facts.flops ? ", " + std::to_string(facts.flops) : "");
}

std::string autocastOf(Node node) {
  constexpr const char *kNames[] = {"low", "fp32", "promote", "neutral", "never"};
  return kNames[static_cast<size_t>(cast<NodeInterface>(node.operation()).facts().autocast)];
}

/// Types of results: from the schema, or by the dialect's own rule, for some number of results.
std::string shapesOf(MLIRContext &context, OperationName name, int64_t version) {
  Sample sample(context, name, version);
  if (const onnx::OpSchema *schema = sample.node().schema())
    return schema->has_type_and_shape_inference_function() || hasFunctionBody(sample.node()) ? "schema" : "";
  for (unsigned results = 1; results <= Sample::kOperands; ++results) {
    Sample other(context, name, version, results);
    SmallVector<Type> types;
    if (cast<NodeInterface>(other.node().operation()).inferTypes(types))
      return "rule";
  }
  return "";
}

Row describe(MLIRContext &context, OperationName name, const std::set<int64_t> &versions) {
  bool isTrain = name.getDialectNamespace() == "train";
  Row row{name.stripDialect().str(), {versions.begin(), versions.end()}, {}};
  auto add = [&](llvm::StringLiteral column, llvm::function_ref<std::string(int64_t)> describe) {
    Row::Cell cell{column, "", {}};
    for (int64_t version : row.versions) {
      std::string text = describe(version);
      if (text.empty())
        cell.missing.push_back(version);
      else
        cell.text = text; // The newest version's.
    }
    row.cells.push_back(std::move(cell));
  };
  auto ask = [&](std::string (*question)(Node)) {
    return [&context, name, question](int64_t version) { return question(Sample(context, name, version).node()); };
  };
  add("shapes", [&](int64_t version) { return shapesOf(context, name, version); });
  if (!isTrain)
    add("gradient", ask(gradientOf));
  add("autocast", ask(autocastOf));
  add("cost", ask(costOf));
  add("CPU kernel", ask(kernelOf));
  add("CUDA", ask(cudaOf));
  return row;
}

int newestOpset() { return onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second; }

std::vector<Row> describeAll(MLIRContext &context, StringRef dialect) {
  std::vector<Row> rows;
  for (RegisteredOperationName name : context.getRegisteredOperations()) {
    if (name.getDialectNamespace() != dialect || !name.hasInterface<NodeInterface>() ||
        name.getStringRef() == NodeGenericOp::getOperationName())
      continue;
    std::set<int64_t> versions;
    for (int opset = kOldestOpset; dialect == "onnx" && opset <= newestOpset(); ++opset)
      if (const onnx::OpSchema *schema = onnx::OpSchemaRegistry::Schema(name.stripDialect().str(), opset, ""))
        versions.insert(schema->SinceVersion());
    rows.push_back(describe(context, name, dialect == "onnx" ? versions : std::set<int64_t>{1}));
  }
  llvm::sort(rows, [](const Row &a, const Row &b) { return a.op < b.op; });
  return rows;
}

const tools::Gap *findGap(StringRef op, StringRef column) {
  for (const tools::Gap &gap : tools::declaredGaps())
    if (gap.op == op && gap.column == column)
      return &gap;
  return nullptr;
}

/// What is lacking and not declared, or declared and not lacking: a sentence each.
std::vector<std::string> findProblems(ArrayRef<std::vector<Row>> tables) {
  std::vector<std::string> problems;
  for (const std::vector<Row> &rows : tables)
    for (const Row &row : rows)
      for (const Row::Cell &cell : row.cells) {
        const tools::Gap *gap = findGap(row.op, cell.column);
        std::string missing = cell.missing.empty() ? "" : row.missingText(cell);
        if (missing == (gap ? gap->versions : ""))
          continue;
        problems.push_back(row.op + ": " + cell.column.str() + " is missing for versions '" + missing +
                           "', Gaps.cpp declares '" + (gap ? gap->versions.str() : "") + "'");
      }
  for (const tools::Gap &gap : tools::declaredGaps()) {
    bool isThere = llvm::any_of(tables, [&](const std::vector<Row> &rows) {
      return llvm::any_of(rows, [&](const Row &row) { return row.op == gap.op; });
    });
    if (!isThere)
      problems.push_back("Gaps.cpp declares a gap of '" + gap.op.str() + "', which is no operator");
  }
  return problems;
}

void printTable(const std::vector<Row> &rows, llvm::raw_ostream &out) {
  out << "| operator |";
  for (const Row::Cell &cell : rows.front().cells)
    out << ' ' << cell.column << " |";
  out << "\n|---|";
  for (size_t i = 0; i < rows.front().cells.size(); ++i)
    out << "---|";
  out << '\n';
  for (const Row &row : rows) {
    out << "| " << row.op << " |";
    for (const Row::Cell &cell : row.cells) {
      out << ' ' << cell.text;
      if (!cell.missing.empty())
        out << (cell.text.empty() ? "none: " : " (not version " + row.missingText(cell) + ": ")
            << (findGap(row.op, cell.column) ? findGap(row.op, cell.column)->reason : llvm::StringLiteral("?"))
            << (cell.text.empty() ? "" : ")");
      out << " |";
    }
    out << '\n';
  }
}

std::string page(ArrayRef<std::vector<Row>> tables) {
  std::string text;
  llvm::raw_string_ostream out(text);
  out << R"(# Operators
What recast knows of each operator, at opsets from )"
      << kOldestOpset << R"( on. Printed by `recast-operators > docs/operators.md`; a test compares.

Every other operator of ONNX is read, kept and written as it came; it runs where the standard defines it by operators of
this table, and gradients pass through it then.

| column | says |
|---|---|
| shapes | where types of results come from: the ONNX library's schema, or a rule of the dialect |
| gradient | a rule; `zero`: it is zero everywhere; `its definition`: through the operators that ONNX defines it by |
| autocast | the class when no policy says otherwise ([precision.md](precision.md)) |
| cost | class of work and arithmetic operations an element, or a formula ([../ir/cost/README.md](../ir/cost/README.md)) |
| CPU kernel | `its definition`: it runs as the operators that define it; `folded`: it is a constant when the plan is made |
| CUDA | what takes it, in the order of asking; each may refuse types or attributes, which `--explain` prints. `region`: generated with its neighbours; `CUDA C++`: a kernel of `runtime/kernels/cuda`; `view`: the memory of its operand; `executor`: every iteration in turn ([cuda.md](cuda.md)) |

## Dialect `onnx`
)";
  printTable(tables[0], out);
  out << R"(
## Dialect `train`
Operators of the training step, in files the functions of the domain `recast`. Each is defined in standard operators,
too; nothing asks for gradients of them.

)";
  printTable(tables[1], out);
  return text;
}

} // namespace

int main(int argc, char **argv) {
  if (!tools::parseCommandLine(argc, argv, category, "Prints what is known of each operator, as Markdown",
                               "\nEXAMPLE:\n  recast-operators > docs/operators.md\n"))
    return tools::kUsage;
  DialectRegistry registry;
  io::registerDialects(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  context.loadAllAvailableDialects();
  std::vector<Row> tables[] = {describeAll(context, "onnx"), describeAll(context, "train")};
  std::vector<std::string> problems = findProblems(tables);
  for (const std::string &problem : problems)
    tools::fail(kTool, problem);
  std::string text = page(tables);
  if (check.empty()) {
    llvm::outs() << text;
  } else if (auto file = llvm::MemoryBuffer::getFile(check); !file || (*file)->getBuffer() != text) {
    problems.push_back("stale");
    tools::fail(kTool, check + " is not what this build knows: write it again with recast-operators > " + check);
  }
  return problems.empty() ? tools::kDone : tools::kFailed;
}
