#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"
#include "passes/step/StepInfo.h"
#include <map>

namespace recast {
#define GEN_PASS_DEF_INSERTOPTIMIZER
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct InsertOptimizerPass : impl::InsertOptimizerBase<InsertOptimizerPass> {
  using InsertOptimizerBase::InsertOptimizerBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    if (optimizer != "adamw" && optimizer != "adam" && optimizer != "sgd") {
      s.graph.emitError() << "--optimizer=" << optimizer << ": this version has adamw, adam and sgd";
      return signalPassFailure();
    }
    scalarsByDecay.clear();
    MLIRContext *context = &getContext();
    Type f64 = Float64Type::get(context), i64 = IntegerType::get(context, 64);
    Value skip = s.find(s.info.skip);
    SmallVector<Value> gradients = s.gradients();

    // Learning rate and step count: doubles and integers, as Python computes with them.
    Value lr = s.addState("lr", splatTensor(RankedTensorType::get({}, f64), this->lr));
    Value step = s.addState("step", splatTensor(RankedTensorType::get({}, i64), 0));
    Value counted = s.b.add(step, s.b.intScalar(1));
    s.update(step, s.b.node("train.keep_if", {skip, step, counted}));
    s.update(lr, s.b.node("Identity", {lr}));

    for (auto [i, name] : llvm::enumerate(s.info.parameters)) {
      auto initializer = s.find(name).getDefiningOp<InitializerOp>();
      if (!initializer) {
        s.graph.emitError() << "'" << name << "' is a graph input without a value and cannot be trained";
        return signalPassFailure();
      }
      Value parameter = s.promote(initializer);
      bool decays = llvm::none_of(noDecay, [&](const std::string &glob) { return gradient::matchesGlob(glob, name); });
      updateParameter(s, parameter, gradients[i], skip, counted, lr, decays ? weightDecay.getValue() : 0.0);
      ++numUpdates;
    }
    for (const auto &[input, next] : s.info.pending) {
      Value before = s.find(input);
      s.update(before, s.b.node("train.keep_if", {skip, before, s.find(next)}));
    }
    if (s.b.failed())
      return signalPassFailure();
    s.finish();
  }

  struct AdamScalars {
    Value step, lr, eps, decay;
  };

  // PyTorch divides by sqrt(v / c) + eps, c = 1 - beta2^step, after the decay by lr * decay. The update of the library
  // transformers (and of ONNX Runtime's adam_mode 1) divides by (sqrt(v) + eps) / sqrt(c), and decays after that:
  //   p' = (p - lr * m / (...)) * (1 - lr * decay).
  // PyTorch's formula gives this with eps / sqrt(c), lr * (1 - lr * decay) and decay / (1 - lr * decay). Without
  // correction c is 1, as it is after very many steps.
  AdamScalars adamScalars(step::StepGraph &s, Value step, Value lr, double decay) {
    Type f64 = Float64Type::get(&getContext());
    auto number = [&](double value) { return s.b.scalar(f64, value); };
    auto [known, isNew] = scalarsByDecay.try_emplace(decay);
    AdamScalars &scalars = known->second;
    if (!isNew)
      return scalars;
    scalars = {step, lr, number(eps), number(decay)};
    if (adamForm == "pytorch")
      return scalars;
    if (adamForm == "transformers") {
      Value remaining = s.b.node("Pow", {number(beta2), s.b.cast(step, f64)});
      scalars.eps = s.b.div(scalars.eps, s.b.node("Sqrt", {s.b.sub(number(1), remaining)}));
    } else {
      scalars.step = s.b.intScalar(std::numeric_limits<int64_t>::max());
    }
    if (decay != 0) {
      Value kept = s.b.sub(number(1), s.b.mul(lr, number(decay)));
      scalars.lr = s.b.mul(lr, kept);
      scalars.decay = s.b.div(scalars.decay, kept);
    }
    return scalars;
  }

  void updateParameter(step::StepGraph &s, Value parameter, Value gradient, Value skip, Value step, Value lr,
                       double decay) {
    Type f64 = Float64Type::get(&getContext());
    auto number = [&](double value) { return s.b.scalar(f64, value); };
    std::string name = s.name(parameter);
    auto type = cast<RankedTensorType>(parameter.getType());
    auto zeros = [&](StringRef suffix) { return s.addZeros(name + "." + suffix.str(), type); };
    if (optimizer == "sgd") {
      Value buffer = momentum != 0 ? zeros("momentum") : Value();
      Operation *op = s.b.node(
          "train.sgd", {skip, parameter, gradient, buffer, step, lr, number(momentum), number(0), number(decay)},
          buffer ? 2 : 1, s.b.attr("nesterov", static_cast<int64_t>(nesterov)));
      s.update(parameter, op->getResult(0));
      if (buffer)
        s.update(buffer, op->getResult(1));
      return;
    }
    Value first = zeros("exp_avg"), second = zeros("exp_avg_sq");
    AdamScalars scalars = adamScalars(s, step, lr, decay);
    Operation *op = s.b.node("train." + optimizer,
                             {skip, parameter, gradient, first, second, scalars.step, scalars.lr, number(beta1),
                              number(beta2), scalars.eps, scalars.decay},
                             3);
    s.update(parameter, op->getResult(0));
    s.update(first, op->getResult(1));
    s.update(second, op->getResult(2));
  }

  std::map<double, AdamScalars> scalarsByDecay;
};

} // namespace
} // namespace recast
