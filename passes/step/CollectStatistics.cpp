#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_COLLECTSTATISTICS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct CollectStatisticsPass : impl::CollectStatisticsBase<CollectStatisticsPass> {
  using CollectStatisticsBase::CollectStatisticsBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    for (auto op : llvm::make_early_inc_range(s.graph.getBody().front().getOps<BatchNormalizationOp>())) {
      Node node(op);
      if (node.getInt("training_mode", 0) == 0)
        continue;
      for (unsigned i : {1u, 2u}) {
        if (i >= node.numOutputs() || isAbsent(node.output(i)) || !node.input(i + 2))
          continue;
        auto initializer = node.input(i + 2).getDefiningOp<InitializerOp>();
        if (!initializer)
          continue; // shared by two nodes: the first has taken it
        Value statistic = s.promote(initializer);
        s.info.pending.emplace_back(s.name(statistic), nameOf(node.output(i)).str());
      }
    }
    s.finish();
  }
};

} // namespace
} // namespace recast
