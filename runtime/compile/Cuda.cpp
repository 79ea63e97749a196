// Which kernels run a plan's steps on a GPU. The order: products go to cuBLASLt, what a region can hold is generated, the
// rest has a kernel in CUDA C++, or is expanded into operators that have. What then is left is an error.
#include "ir/onnx/ExpandFunction.h"
#include "ir/train/Dialect.h"
#include "runtime/compile/Unit.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// cuBLASLt's larger products split the sum over k, and want memory for the parts.
constexpr size_t kProductWorkspaceBytes = size_t(4) << 20;
constexpr int64_t kLargeProduct = int64_t(1) << 24; ///< Multiply-adds.

bool isProduct(const StepSpec &spec) {
  return spec.domain.empty() && (spec.op == "MatMul" || spec.op == "Gemm") && isFloat(spec.inputs[0].dtype);
}

size_t productWorkspace(const StepSpec &spec) {
  int64_t inner = spec.inputs[0].dims.empty() ? 1 : spec.inputs[0].dims.back();
  return spec.outputs[0].elems() * inner >= kLargeProduct ? kProductWorkspaceBytes : 0;
}

/// Gemm's third operand is an addition of its own, which a region takes together with what follows.
LogicalResult splitGemm(Unit &unit, Operation *op) {
  Node node(op);
  if (!isa<GemmOp>(op) || !node.input(2))
    return success();
  NodeBuilder &b = unit.builder;
  b.after(op);
  b.setScope(node.name().empty() ? nameOf(op->getResult(0)) : node.name());
  Value result = op->getResult(0), addend = node.input(2);
  if (double beta = node.getFloat("beta", 1); beta != 1)
    addend = b.mulScalar(addend, beta);
  Value sum = b.add(result, addend);
  result.replaceAllUsesExcept(sum, sum.getDefiningOp());
  std::string name = nameOf(result).str();
  setName(result, unit.names.unique(name + "/product"));
  setName(sum, name);
  op->eraseOperand(2);
  unit.prepared.erase(op);
  for (Operation *made : {op, addend.getDefiningOp(), sum.getDefiningOp()}) {
    if (!made || isStructure(made) || unit.prepared.contains(made))
      continue;
    std::vector<std::string> refusals;
    if (failed(chooseKernel(unit, made, /*referenceOnly=*/made != op, refusals)))
      return failure();
  }
  return success();
}

/// Everything that is no product waits for a region or a kernel.
void retarget(Unit &unit, Operation *op) {
  Prepared &prepared = unit.prepared.at(op);
  prepared.refusals.clear();
  prepared.workspaceBytes = isProduct(prepared.spec) ? productWorkspace(prepared.spec) : 0;
  prepared.inPlace.clear();
  prepared.library = isProduct(prepared.spec) ? "cublaslt" : "reference";
  if (isProduct(prepared.spec))
    prepared.mayFail = false;
}

/// Gives the step a kernel of CUDA C++; false, and why, where there is none.
bool takeKernel(Prepared &prepared, std::string &refusal) {
  cuda::Program program;
  if (!cuda::compile(prepared.spec, program, refusal))
    return false;
  prepared.library = "cuda";
  prepared.workspaceBytes = program.workspaceBytes;
  prepared.inPlace = program.inPlace;
  prepared.mayFail = program.mayFail;
  return true;
}

class Chooser {
public:
  explicit Chooser(Unit &unit) : unit(unit) {}
  LogicalResult run();

private:
  void forEachStep(llvm::function_ref<void(Operation *)> visit);
  LogicalResult splitGemms();
  LogicalResult chooseRest(bool &hasExpanded);

  Unit &unit;
  std::vector<std::string> problems;
};

void Chooser::forEachStep(llvm::function_ref<void(Operation *)> visit) {
  SmallVector<Operation *> steps;
  unit.graph->walk([&](Operation *op) {
    if (unit.prepared.contains(op) && op->getNumRegions() == 0)
      steps.push_back(op);
  });
  llvm::for_each(steps, visit);
}

LogicalResult Chooser::splitGemms() {
  bool isFine = true;
  forEachStep([&](Operation *op) { isFine &= succeeded(splitGemm(unit, op)); });
  return success(isFine);
}

/// Kernels for what no region took. An operator without one is replaced by its definition, for another round.
LogicalResult Chooser::chooseRest(bool &hasExpanded) {
  bool isFine = true;
  forEachStep([&](Operation *op) {
    Prepared &prepared = unit.prepared.at(op);
    std::string refusal;
    if (!isFine || prepared.library != "reference" || takeKernel(prepared, refusal))
      return;
    bool isTrain = isa<train::TrainDialect>(op->getDialect());
    if (isTrain || hasFunctionBody(Node(op))) {
      isFine = succeeded(expandStep(unit, op));
      hasExpanded = true;
      return;
    }
    problems.push_back("node " + Node(op).describe() + ": " + refusal);
    for (const std::string &reason : prepared.refusals)
      problems.back() += "; " + reason;
  });
  return success(isFine);
}

LogicalResult Chooser::run() {
  forEachStep([&](Operation *op) { retarget(unit, op); });
  // A body is expanded once at most for each operator that it came from: there are no circles.
  for (bool hasExpanded = true; hasExpanded;) {
    hasExpanded = false;
    if (failed(splitGemms()))
      return failure();
    forEachStep([&](Operation *op) {
      Prepared &prepared = unit.prepared.at(op);
      if (prepared.library != "cuda" && prepared.library != "generated")
        retarget(unit, op);
    });
    formRegions(unit, {.isForGpu = true});
    if (failed(chooseRest(hasExpanded)))
      return failure();
  }
  if (problems.empty())
    return success();
  constexpr size_t kMost = 10;
  size_t more = problems.size() > kMost ? problems.size() - kMost : 0;
  problems.resize(problems.size() - more);
  return unit.graph->emitError() << "CUDA does not run " << llvm::join(problems, "\n  ")
                                 << (more ? "\n  and " + std::to_string(more) + " more" : "");
}

} // namespace

LogicalResult chooseCudaKernels(Unit &unit) { return Chooser(unit).run(); }

} // namespace recast::compile
