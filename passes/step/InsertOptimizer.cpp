#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/Optimizers.h"
#include "passes/step/ParameterGroups.h"
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
    std::vector<double> lrFactors, decayFactors;
    if (failed(readOptions(s, lrFactors, decayFactors)))
      return signalPassFailure();
    MLIRContext *context = &getContext();
    Type f64 = Float64Type::get(context), i64 = IntegerType::get(context, 64);
    Value skip = s.find(s.info.skip);
    SmallVector<Value> gradients = s.gradients();

    // Learning rate and step count: doubles and integers, as Python computes with them.
    Value lr = s.addState("lr", splatTensor(RankedTensorType::get({}, f64), set.lr));
    Value step = s.addState("step", splatTensor(RankedTensorType::get({}, i64), 0));
    Value counted = s.b.add(step, s.b.intScalar(1));
    s.update(step, s.b.node("train.keep_if", {skip, step, counted}));
    s.update(lr, s.b.node("Identity", {lr}));
    std::map<double, Value> scaledLr{{1.0, lr}}; // One product a group.

    for (auto [i, name] : llvm::enumerate(s.info.parameters)) {
      auto initializer = s.find(name).getDefiningOp<InitializerOp>();
      if (!initializer) {
        s.graph.emitError() << "'" << name << "' is a graph input without a value and cannot be trained";
        return signalPassFailure();
      }
      Value &rate = scaledLr[lrFactors[i]];
      if (!rate)
        rate = s.b.mulScalar(lr, lrFactors[i]);
      TensorAttr initial = initializer.getValue();
      if (Type element = elementTypeOf(initializer.getResult()); element.isBF16() || element.isF16()) {
        s.graph.emitError() << "the parameter '" << name << "' is " << (element.isBF16() ? "bf16" : "f16")
                            << ": without fp32 master weights small updates are lost; bring the model to f32 with "
                            << "--dtype=f32, and choose the type of its products with --precision";
        return signalPassFailure();
      }
      Value parameter = s.promote(initializer);
      Value next =
          updateParameter({s, parameter, gradients[i], skip, counted, rate, set.weightDecay * decayFactors[i], name});
      if (ema >= 0) {
        Value average = s.addState(name + ".ema", initial);
        s.update(average, s.b.node("train.ema", {skip, average, next, counted, s.b.scalar(f64, ema)}));
      }
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

private:
  step::OptimizerSettings set;

  LogicalResult readOptions(step::StepGraph &s, std::vector<double> &lrFactors, std::vector<double> &decayFactors) {
    auto report = [&](llvm::Error error) { return s.graph.emitError() << llvm::toString(std::move(error)); };
    auto vector = [](ArrayRef<std::string> list) { return std::vector<std::string>(list.begin(), list.end()); };
    auto settings = step::readSettings(optimizer, vector(this->settings));
    if (!settings)
      return report(settings.takeError());
    set = *settings;
    auto factors = [&](StringRef flag, ArrayRef<std::string> entries, std::vector<double> &result) -> LogicalResult {
      auto rules = step::readFactors(flag, vector(entries));
      if (!rules)
        return report(rules.takeError());
      auto found = step::factorsOf(s.info.parameters, *rules);
      if (!found)
        return report(found.takeError());
      result = std::move(*found);
      return success();
    };
    std::vector<step::FactorRule> undecayed;
    for (const std::string &glob : noDecay)
      undecayed.push_back({glob, 0, "--no-decay=" + glob});
    auto kept = step::factorsOf(s.info.parameters, undecayed);
    if (!kept)
      return report(kept.takeError());
    if (failed(factors("lr-scale", lrScale, lrFactors)) || failed(factors("decay-scale", decayScale, decayFactors)))
      return failure();
    for (auto [factor, keep] : llvm::zip(decayFactors, *kept))
      factor *= keep;
    return success();
  }

  struct Parameter {
    step::StepGraph &s;
    Value value, gradient, skip, step, lr;
    double decay;
    std::string name;

    Value number(double x) const { return s.b.scalar(s.b.rewriter().getF64Type(), x); }
    Value state(StringRef suffix, double initial = 0) const {
      return s.addFilled(name + "." + suffix.str(), cast<RankedTensorType>(value.getType()), initial);
    }
    /// Adds the operator; `kept` are the states among its operands, in order. Gives the new parameter.
    Value update(StringRef op, ArrayRef<Value> operands, ArrayRef<Value> kept,
                 ArrayRef<NamedAttribute> attrs = {}) const {
      Operation *made = s.b.node(("train." + op).str(), operands, static_cast<unsigned>(1 + kept.size()), attrs);
      s.update(value, made->getResult(0));
      for (auto [i, input] : llvm::enumerate(kept))
        s.update(input, made->getResult(static_cast<unsigned>(1 + i)));
      return made->getResult(0);
    }
  };

  struct AdamScalars {
    Value step, lr, eps, decay;
  };

  // PyTorch divides by sqrt(v / c) + eps, c = 1 - beta2^step, after the decay by lr * decay. The update of the library
  // transformers (and of ONNX Runtime's adam_mode 1) divides by (sqrt(v) + eps) / sqrt(c), and decays after that:
  //   p' = (p - lr * m / (...)) * (1 - lr * decay).
  // PyTorch's formula gives this with eps / sqrt(c), lr * (1 - lr * decay) and decay / (1 - lr * decay). Without
  // correction c is 1, as it is after very many steps.
  AdamScalars adamScalars(const Parameter &p) {
    AdamScalars scalars{p.step, p.lr, p.number(set.eps), p.number(p.decay)};
    if (adamForm == "pytorch")
      return scalars;
    NodeBuilder &b = p.s.b;
    if (adamForm == "transformers") {
      Value remaining = b.node("Pow", {p.number(set.beta2), b.cast(p.step, b.rewriter().getF64Type())});
      scalars.eps = b.div(scalars.eps, b.node("Sqrt", {b.sub(p.number(1), remaining)}));
    } else {
      scalars.step = b.intScalar(std::numeric_limits<int64_t>::max());
    }
    if (p.decay != 0) {
      Value kept = b.sub(p.number(1), b.mul(p.lr, p.number(p.decay)));
      scalars.lr = b.mul(p.lr, kept);
      scalars.decay = b.div(scalars.decay, kept);
    }
    return scalars;
  }

  Value updateParameter(const Parameter &p) {
    Value decay = p.number(p.decay);
    auto flag = [&](StringRef name, bool value) { return p.s.b.attr(name, static_cast<int64_t>(value)); };
    if (optimizer == "sgd") {
      Value buffer = set.momentum != 0 ? p.state("momentum") : Value();
      return p.update(
          "sgd",
          {p.skip, p.value, p.gradient, buffer, p.step, p.lr, p.number(set.momentum), p.number(set.dampening), decay},
          buffer ? ArrayRef<Value>(buffer) : ArrayRef<Value>(), flag("nesterov", set.nesterov));
    }
    if (optimizer == "adagrad") {
      Value sum = p.state("sum", set.initialAccumulator);
      return p.update("adagrad",
                      {p.skip, p.value, p.gradient, sum, p.step, p.lr, p.number(set.lrDecay), p.number(set.eps), decay},
                      sum);
    }
    if (optimizer == "rmsprop") {
      SmallVector<Value> kept{p.state("square_avg")};
      Value mean = set.centered ? kept.emplace_back(p.state("grad_avg")) : Value();
      Value buffer = set.momentum != 0 ? kept.emplace_back(p.state("momentum")) : Value();
      return p.update("rmsprop",
                      {p.skip, p.value, p.gradient, kept[0], mean, buffer, p.lr, p.number(set.alpha), p.number(set.eps),
                       decay, p.number(set.momentum)},
                      kept);
    }
    Value first = p.state("exp_avg"), beta1 = p.number(set.beta1), beta2 = p.number(set.beta2);
    if (optimizer == "lion")
      return p.update("lion", {p.skip, p.value, p.gradient, first, p.lr, beta1, beta2, decay}, first);

    SmallVector<Value> kept{first, p.state("exp_avg_sq")}, operands{p.skip, p.value, p.gradient, kept[0], kept[1]};
    if (optimizer == "nadam") {
      // An f32 scalar for each parameter, as in torch.
      kept.push_back(
          p.s.addFilled(p.name + ".mu_product", RankedTensorType::get({}, Float32Type::get(&getContext())), 1));
      operands.push_back(kept.back());
    }
    bool isAdam = optimizer == "adam" || optimizer == "adamw";
    if (isAdam) {
      AdamScalars scalars = adamScalars(p);
      operands.append({scalars.step, scalars.lr, beta1, beta2, scalars.eps, scalars.decay});
    } else {
      operands.append({p.step, p.lr, beta1, beta2, p.number(set.eps), decay});
    }
    if (isAdam && set.amsgrad)
      operands.push_back(kept.emplace_back(p.state("max_exp_avg_sq")));
    if (isAdam)
      return p.update(set.decoupledWeightDecay ? "adamw" : optimizer.getValue(), operands, kept);
    if (optimizer == "nadam")
      operands.push_back(p.number(set.momentumDecay));
    return p.update(optimizer, operands, kept, flag("decoupled_weight_decay", set.decoupledWeightDecay));
  }
};

} // namespace
} // namespace recast
