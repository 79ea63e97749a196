// Which kernels run a plan's steps on a GPU. The order: products go to cuBLASLt, those of dequantised 8-bit floats as
// products of the 8-bit floats where the GPU has them, convolutions to cuDNN; what a region can hold is generated,
// the rest has a kernel in CUDA C++, or is expanded into operators that have. What then is left is an error.
#include "ir/cost/Cost.h"
#include "ir/onnx/ExpandFunction.h"
#include "ir/train/Dialect.h"
#include "runtime/compile/Unit.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Forgets the processor's kernel: a region or a kernel of CUDA C++ takes its place.
void retarget(Prepared &prepared) {
  prepared.refusals.clear();
  prepared.workspaceBytes = 0;
  prepared.inPlace.clear();
  prepared.library = "reference";
}

/// Gives the step a product of cuBLASLt, a convolution of cuDNN or a kernel of CUDA C++; false, and why, where there is
/// none.
bool takeKernel(Prepared &prepared, std::string &refusal) {
  cuda::Program program;
  if (!cuda::compile(prepared.spec, program, refusal))
    return false;
  prepared.library = cuda::libraryOf(program);
  prepared.workspaceBytes = program.workspaceBytes;
  prepared.inPlace = program.inPlace;
  prepared.mayFail = program.mayFail;
  llvm::append_range(prepared.refusals, program.refusals);
  return true;
}

constexpr llvm::StringLiteral kGpuLibraries[] = {"cublaslt", "cudnn", "cuda", "generated"};

class Chooser {
public:
  Chooser(Unit &unit, int architecture) : unit(unit), architecture(architecture) {}
  LogicalResult run();

private:
  void forEachStep(llvm::function_ref<void(Operation *)> visit);
  LogicalResult chooseRest(bool &hasExpanded);

  Unit &unit;
  int architecture;
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
  unit.graph->walk([&](Operation *op) {
    if (op->getNumRegions() && unit.prepared.contains(op) && !isa<ScanOp>(op))
      problems.push_back(
          "node " + Node(op).describe() +
          ": the host does not wait for a value, and what it does depends on one; run it with --device=cpu");
  });
  auto dequantised = useFp8Products(unit, architecture);
  forEachStep([&](Operation *op) {
    if (isa<MatMulOp, GemmOp, ConvOp, ConvTransposeOp, train::ConvGradInputOp, train::ConvGradWeightOp>(op) &&
        cost::costOf(op).arithmetic == "tf32")
      unit.prepared.at(op).spec.attrs.set(std::string(cuda::kTf32), int64_t(1));
  });
  for (bool hasExpanded = true; hasExpanded;) {
    hasExpanded = false;
    forEachStep([&](Operation *op) {
      Prepared &prepared = unit.prepared.at(op);
      if (llvm::none_of(kGpuLibraries, [&](StringRef name) { return prepared.library == name; }))
        retarget(prepared);
    });
    formRegions(unit, {.isForGpu = true});
    if (failed(chooseRest(hasExpanded)))
      return failure();
  }
  for (auto &[product, reason] : dequantised)
    unit.prepared.at(product).refusals.push_back("fp8: " + reason);
  if (problems.empty())
    return success();
  constexpr size_t kMost = 10;
  size_t more = problems.size() > kMost ? problems.size() - kMost : 0;
  problems.resize(problems.size() - more);
  return unit.graph->emitError() << "CUDA does not run " << llvm::join(problems, "\n  ")
                                 << (more ? "\n  and " + std::to_string(more) + " more" : "");
}

} // namespace

LogicalResult chooseCudaKernels(Unit &unit, int architecture) { return Chooser(unit, architecture).run(); }

} // namespace recast::compile
