#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_INSERTRANDOMMASKS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// The ratio of a Dropout that draws a mask: training mode, and a ratio above 0; both known.
std::optional<double> ratioOf(Node node) {
  if (node.sinceVersion() < 12 || constantScalar(node.input(2)) != 1.0)
    return std::nullopt;
  std::optional<double> ratio = node.input(1) ? constantScalar(node.input(1)) : 0.5;
  return ratio && *ratio > 0 && *ratio < 1 ? ratio : std::nullopt;
}

struct InsertRandomMasksPass : impl::InsertRandomMasksBase<InsertRandomMasksPass> {
  using InsertRandomMasksBase::InsertRandomMasksBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    Type f64 = Float64Type::get(&getContext()), i64 = IntegerType::get(&getContext(), 64);
    Value key, drawn;
    int64_t offset = 0;
    for (auto op : llvm::make_early_inc_range(s.graph.getBody().front().getOps<DropoutOp>())) {
      Node node(op);
      std::optional<double> ratio = ratioOf(node);
      if (!ratio)
        continue;
      if (!key)
        drawn = key = s.addState("rng_key", splatTensor(RankedTensorType::get({}, i64), static_cast<double>(seed)));
      std::string name = nameOf(node.output()).str(),
                  maskName = node.numOutputs() > 1 ? nameOf(node.output(1)).str() : "";
      s.b.before(op);
      s.b.setScope(node.name().empty() ? name : node.name());
      if (dataParallel && drawn == key) { // Ranks draw masks of their own, and keep one state.
        constexpr auto kStride = static_cast<int64_t>(0x9e3779b97f4a7c15u);
        drawn = s.b.add(key, s.b.mul(s.b.node("train.rank", {}), s.b.intScalar(kStride)));
      }
      Value x = node.input(0);
      Value mask = s.b.node("train.dropout_mask", {drawn, s.b.shapeOf(x), s.b.scalar(f64, *ratio)},
                            s.b.attr("offset", offset++));
      Value y = s.b.where(mask, s.b.mulScalar(x, 1 / (1 - *ratio)), s.b.scalarLike(x, 0));
      node.output().replaceAllUsesWith(y);
      if (node.numOutputs() > 1)
        node.output(1).replaceAllUsesWith(mask);
      s.b.inference().forget(op);
      op.erase();
      setName(y, name);
      if (!maskName.empty())
        setName(mask, maskName);
      ++numMasks;
    }
    if (key) {
      // Every step draws anew, a skipped one too.
      s.b.before(s.graph.getBody().front().getTerminator());
      s.b.setScope("");
      s.update(key, s.b.add(key, s.b.intScalar(1)));
    }
    if (s.b.failed())
      return signalPassFailure();
    s.finish();
  }
};

} // namespace
} // namespace recast
