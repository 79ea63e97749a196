#include "passes/Passes.h"
#include "passes/Report.h"
#include "passes/precision/CastPlacement.h"
#include "passes/precision/FunctionTypes.h"
#include "llvm/ADT/StringExtras.h"

namespace recast {
#define GEN_PASS_DEF_AUTOCAST
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// Two are enough for most graphs; each further one is cheaper than the one before.
constexpr int kMostRounds = 8;

struct AutocastPass : impl::AutocastBase<AutocastPass> {
  using AutocastBase::AutocastBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    auto policy = precision::Policy::load(type, this->policy);
    if (!policy) {
      emitError(UnknownLoc::get(&getContext())) << llvm::toString(policy.takeError());
      return signalPassFailure();
    }
    Builder b(&getContext());
    low = type == "f16" ? Type(b.getF16Type()) : Type(b.getBF16Type());
    // Types inside functions come from the calls as they are now; callers keep them.
    std::vector<precision::TypedFunction> functions = precision::typeCalledFunctions(graph);
    if (failed(rewrite(graph, *policy)))
      return signalPassFailure();
    for (precision::TypedFunction &entry : functions) {
      if (!entry.problem.empty())
        say("function '" + entry.function.getInfo().getAs<StringAttr>("name").str() +
            "' keeps its types: " + entry.problem);
      else if (failed(rewrite(entry.function, *policy)))
        return signalPassFailure();
    }
    finish(graph, *policy);
  }

private:
  LogicalResult rewrite(Operation *holder, precision::Policy &policy) {
    for (int round = 0; round < kMostRounds; ++round) {
      precision::Assignment assignment(holder, policy, low, train);
      assignment.run();
      precision::CastPlacement placement(holder, assignment, low);
      if (failed(placement.run()))
        return failure();
      casts += placement.numCasts();
      if (round == 0)
        for (const std::string &line : assignment.remarks())
          say(line);
      // Without casts of the author's the result is what a second run would leave. With them values may have become
      // one, and cheaper than they were counted.
      bool isLast = !placement.hasChanged() || !assignment.hasOwnCasts() || round + 1 == kMostRounds;
      if (!isLast)
        continue;
      nodesLow += placement.numLow();
      for (auto [op, count] : assignment.refused())
        refused[op] += count;
      break;
    }
    return success();
  }

  void say(const Twine &line) {
    remarks.push_back(line.str());
    emitRemark(UnknownLoc::get(&getContext())) << line;
  }

  void warn(const Twine &line) {
    remarks.push_back(line.str());
    emitWarning(UnknownLoc::get(&getContext())) << line;
  }

  void finish(GraphOp graph, const precision::Policy &policy) {
    int64_t opset = opsetVersion(graph, ""), needed = 0;
    unsigned nodes = 0;
    SmallVector<StringRef> operators;
    for (auto [op, count] : refused)
      if (int64_t first = precision::firstOpsetAllowing(op, opset, low)) {
        operators.push_back(op);
        nodes += count;
        needed = std::max(needed, first);
      }
    if (nodes)
      warn(Twine(nodes) + (nodes == 1 ? " node stays" : " nodes stay") + " in f32: opset " + Twine(opset) +
           " does not define " + llvm::join(operators, ", ") + " for " + precision::labelOf(low) +
           "; --opset=" + Twine(needed) + " brings the model to an opset that does");
    for (const std::string &name : policy.unusedNames())
      warn("--policy=" + this->policy + ": the rule for the name '" + name + "' decides nothing");
    numCasts += casts;
    numLow += nodesLow;
    addReport(getOperation(), "autocast",
              llvm::json::Object{{"type", type.getValue()},
                                 {"casts_inserted", casts},
                                 {"nodes_low", nodesLow},
                                 {"remarks", llvm::json::Array(remarks)}});
  }

  Type low;
  /// Not read from the statistics: a build of LLVM without assertions keeps none.
  int64_t casts = 0, nodesLow = 0;
  std::vector<std::string> remarks;
  llvm::MapVector<StringRef, unsigned> refused;
};

} // namespace
} // namespace recast
