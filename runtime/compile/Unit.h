// One compilation in progress: the copy of the module that it rewrites, and what it has found out. The phases, in
// order: bindInputs, inlineCalls, simplify, chooseKernels, buildPlan.
#pragma once
#include "ir/onnx/Sequences.h"
#include "runtime/compile/Compile.h"
#include "runtime/compile/Values.h"
#include "runtime/fusion/Schedule.h"
#include "llvm/ADT/StringMap.h"
#include <set>

namespace recast::compile {

/// Which output replaces a state input after the step, by names: `metadata_props["recast.state"]`.
using StatePairs = std::map<std::string, std::string>;

/// A step whose kernel is chosen.
struct Prepared {
  StepSpec spec;
  std::string library;
  std::vector<std::string> refusals;
  size_t workspaceBytes = 0;
  std::vector<InPlace> inPlace;
  bool mayFail = false;                      ///< Bodies apart.
  std::vector<std::string> moreOrigins = {}; ///< Step::moreOrigins.
};

/// What a generated step computes, and the name of its code.
struct GeneratedRegion {
  fusion::Region region;
  fusion::Program program;
  std::string name;
};

/// What a block carries on: the new value, and the argument that it replaces at the next run or iteration.
using Carried = llvm::SmallVector<std::pair<mlir::OpOperand *, mlir::BlockArgument>>;

struct Unit {
  Unit(mlir::ModuleOp module, const StatePairs &state, std::shared_ptr<const void> model)
      : module(module), graph(onnx_ir::mainGraph(module)), block(graph.getBody().front()), state(state), names(graph),
        builder(graph, names, types), sequences(builder), values(std::move(model)) {
    for (mlir::Value output : block.getTerminator()->getOperands())
      outputNames.push_back(onnx_ir::nameOf(output).str());
  }

  void erase(mlir::Operation *op) {
    op->walk([&](mlir::Operation *inner) {
      types.forget(inner);
      values.forget(inner);
      sequences.forget(inner);
      prepared.erase(inner);
    });
    op->erase();
  }

  mlir::ModuleOp module;
  onnx_ir::GraphOp graph;
  mlir::Block &block;
  const StatePairs &state;
  std::vector<std::string> outputNames;
  onnx_ir::TypeInference types;
  onnx_ir::NameScope names;
  onnx_ir::NodeBuilder builder;
  onnx_ir::Sequences sequences;
  Values values;
  llvm::StringMap<int64_t> sizes;                 ///< Of symbolic dimensions.
  llvm::SmallVector<onnx_ir::TensorAttr> initial; ///< One a block argument: the default; null: none.
  std::unordered_map<mlir::Operation *, Prepared> prepared;
  std::vector<GeneratedRegion> regions;
};

/// The location of every operation becomes its origin: the name of its first output, which is unique in the model.
/// Operations that come of others get theirs (inheritOrigin).
void markOrigins(Unit &unit);
/// For operations in [first, end) that took the place of one with that location, bodies included.
void inheritOrigin(mlir::Location location, mlir::Operation *first, mlir::Operation *end);
/// "" where an operation comes of none of the model's.
llvm::StringRef originOf(mlir::Operation *op);

/// Gives every input a static type. Inputs with a default that are no state, and that the caller says nothing about,
/// become constants.
mlir::LogicalResult bindInputs(Unit &unit, const CompileOptions &options);

/// Replaces calls of model-local functions by their bodies.
mlir::LogicalResult inlineCalls(Unit &unit);

/// Drops operations whose results nothing reads, between `first` and `end` (both null: the whole block), and in bodies.
void removeDead(Unit &unit, mlir::Block &block, mlir::Operation *first = nullptr, mlir::Operation *end = nullptr);
/// Infers types in order and folds: operations on constants, shapes of static tensors, and operations that give what
/// they get. From `first` up to `end` (null: the whole block), bodies included. Folded operations stay, without uses or
/// as constants.
mlir::LogicalResult simplify(Unit &unit, mlir::Block &block, mlir::Operation *first = nullptr,
                             mlir::Operation *end = nullptr);

/// Brings If, Loop and Scan into the form that the executor runs: arguments of bodies have the types of what they get,
/// Scan goes along axis 0, and what a body carries on is no argument of another place. Simplifies the bodies. Does
/// nothing to other operations.
mlir::LogicalResult prepareBodies(Unit &unit, mlir::Operation *op);
/// Puts the branch of an If whose condition is a constant in its place; the first operation of it, null where there is
/// nothing to do.
mlir::Operation *takeKnownBranch(Unit &unit, mlir::Operation *op);
/// Finds the length of what a Loop collects where the number of iterations is a constant, and holds results against
/// what the bodies give: their bytes are copied. Precondition: types are inferred.
mlir::LogicalResult closeResults(Unit &unit, mlir::Operation *op);

/// True for operations that are no steps: constants, the terminator, what stands for absent inputs.
bool isStructure(mlir::Operation *op);
/// The step as kernels see it. An error names the node and what the runtime cannot represent.
mlir::FailureOr<StepSpec> makeSpec(Unit &unit, mlir::Operation *op);

/// True where the result of a view shares the operand's memory: no step is needed.
bool sharesOperand(Unit &unit, mlir::Operation *op);
/// The value whose memory it is: views share their operand's.
mlir::Value sourceOf(Unit &unit, mlir::Value value);
/// Of the graph, or of the body of a Loop or a Scan.
Carried carriedStates(Unit &unit, mlir::Block &block);
/// Finds a kernel for every operation; those without one are replaced by what they are defined as. Outputs of a block
/// that are another state than their own become copies: it may have its new value when they are read.
mlir::LogicalResult chooseKernels(Unit &unit, bool referenceOnly);

struct RegionOptions {
  bool fuses = true;     ///< Else every operation is a region of its own.
  int reach = 1 << 30;   ///< Operations of the block that may stand between one of a region and the next.
  bool isForGpu = false; ///< Also what has no elements to speak of: a GPU has no other way to compute it.
  int64_t minElems = 0;  ///< Operations with fewer elements stay with the library.
  /// Operations that start regions of their own, as the attribute `operators` of a generated step calls them.
  std::set<std::string> apart = {};
};
/// Chooses the kernel of one step, if there is one.
mlir::LogicalResult chooseKernel(Unit &unit, mlir::Operation *op, bool referenceOnly,
                                 std::vector<std::string> &refusals);
/// Puts the definition in other operators in the place of a step, with kernels for each of them.
mlir::LogicalResult expandStep(Unit &unit, mlir::Operation *op);
/// After chooseKernels: the kernels of a GPU in the place of the processor's. An error names the steps that none runs.
/// `architecture` as CompileOptions::cudaArchitecture.
mlir::LogicalResult chooseCudaKernels(Unit &unit, int architecture);
/// Products of dequantised 8-bit floats become products of those. Gives the products that read some and stay as they
/// are, with the reason.
std::vector<std::pair<mlir::Operation *, std::string>> useFp8Products(Unit &unit, int architecture);

/// Puts operations that no library takes, only the reference evaluator, into generated steps. Whether one is generated
/// depends on it alone, not on its neighbours: so is what it computes, to the bit.
void formRegions(Unit &unit, const RegionOptions &options);
/// What is prepared, so that a plan can be built twice.
std::unordered_map<mlir::Operation *, Prepared> copyPrepared(const Unit &unit);
/// Adds the code of the regions to the plan.
Status generateCode(Unit &unit, Plan &plan, bool emulates);

/// Places buffers and writes everything down.
mlir::FailureOr<std::unique_ptr<Plan>> buildPlan(Unit &unit, bool inPlace);

} // namespace recast::compile
