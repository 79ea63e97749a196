// Losses with labels, and their gradients.
#include "runtime/kernels/cuda/source/Loss.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"

namespace recast::cuda {
namespace {

constexpr int64_t kNewest = INT64_MAX;

LossReduction reductionOf(const StepSpec &spec) {
  std::string reduction = spec.attrs.getString("reduction", "mean");
  return reduction == "none" ? LossReduction::None : reduction == "sum" ? LossReduction::Sum : LossReduction::Mean;
}

/// Scores, labels and weights are the inputs from `first` on.
std::string problemOf(const StepSpec &spec, size_t first, LossProblem &problem) {
  const TensorType &scores = spec.inputs[first], &labels = spec.inputs[first + 1];
  if (!isFloat(scores.dtype) || scores.dtype == DType::F64)
    return unsupported(scores.dtype);
  if (labels.dtype != DType::I64 && labels.dtype != DType::I32)
    return "labels of " + unsupported(labels.dtype);
  if (scores.rank() < 2)
    return "scores need at least two dimensions";
  problem.classes = scores.dims[1];
  problem.inner = product(scores.dims, 2, scores.rank());
  problem.positions = labels.elems();
  problem.ignores = spec.attrs.has("ignore_index");
  problem.ignoreIndex = spec.attrs.getInt("ignore_index", 0);
  problem.isWide = labels.dtype == DType::I64;
  if (problem.positions != scores.dims[0] * problem.inner)
    return "there are not as many labels as rows of scores";
  if (!has(spec.inputs, first + 2))
    return "";
  problem.weightType = static_cast<int>(spec.inputs[first + 2].dtype);
  return spec.inputs[first + 2].elems() == problem.classes ? "" : "there are not as many weights as classes";
}

/// The pointers of a problem in arguments that begin with one.
template <typename Args> void setProblem(LaunchOf<Args> &launch, const StepSpec &spec, size_t first, bool readsScores) {
  static_assert(offsetof(Args, problem) == 0);
  if (readsScores)
    launch.pointer(offsetof(LossProblem, scores), input(first), Use::Read);
  launch.pointer(offsetof(LossProblem, labels), input(first + 1), Use::Read);
  if (has(spec.inputs, first + 2))
    launch.pointer(offsetof(LossProblem, weights), input(first + 2), Use::Read);
  launch.pointer(offsetof(LossProblem, fault), {Operand::Fault}, Use::ReadWrite);
}

template <bool isCrossEntropy> std::string compileLoss(const StepSpec &spec, Program &program) {
  LossArgs args{};
  if (std::string refusal = problemOf(spec, 0, args.problem); !refusal.empty())
    return refusal;
  int64_t positions = args.problem.positions;
  auto bytes = static_cast<size_t>(positions) * sizeof(double);
  Operand losses = program.reserve(bytes), counts = program.reserve(bytes);
  if (isCrossEntropy && has(spec.outputs, 1))
    program.inPlace.push_back({1, 0});
  if (positions) {
    LaunchOf<LossArgs> launch((isCrossEntropy ? "cross_entropy" : "nll") + typeSuffix(spec.inputs[0].dtype), args);
    setProblem(launch, spec, 0, true);
    launch.write(&LossArgs::losses, losses).write(&LossArgs::counts, counts);
    if (isCrossEntropy && has(spec.outputs, 1))
      launch.write(&LossArgs::logProb, output(1));
    launch.grid(blocksFor(isCrossEntropy ? positions * 32 : positions)).into(program);
  }
  LossReduction reduction = reductionOf(spec);
  LossJoinArgs join{};
  join.positions = positions;
  join.lossType = static_cast<int>(spec.outputs[0].dtype);
  join.reduction = reduction;
  if (positions == 0 && reduction == LossReduction::None)
    return "";
  LaunchOf<LossJoinArgs> launch("loss_join", join);
  if (positions)
    launch.read(&LossJoinArgs::losses, losses).read(&LossJoinArgs::counts, counts);
  else
    return "there are no labels";
  launch.write(&LossJoinArgs::loss, output(0))
      .grid(reduction == LossReduction::None ? blocksFor(positions) : 1)
      .into(program);
  return "";
}

/// Inputs: dloss scores labels weights?.
template <bool isCrossEntropy> std::string compileLossGrad(const StepSpec &spec, Program &program) {
  LossGradArgs args{};
  if (std::string refusal = problemOf(spec, 1, args.problem); !refusal.empty())
    return refusal;
  program.inPlace = {{0, 1}};
  if (args.problem.positions == 0)
    return "";
  LossReduction reduction = reductionOf(spec);
  args.dlossType = static_cast<int>(spec.inputs[0].dtype);
  args.perPosition = reduction == LossReduction::None;
  Operand total;
  if (reduction == LossReduction::Mean) {
    Operand counts = program.reserve(static_cast<size_t>(args.problem.positions) * sizeof(double));
    total = program.reserve(sizeof(double));
    LaunchOf<LossWeightArgs> weights("loss_weights", {.problem = args.problem, .counts = nullptr});
    setProblem(weights, spec, 1, false);
    weights.write(&LossWeightArgs::counts, counts).grid(blocksFor(args.problem.positions)).into(program);
    LossJoinArgs join{};
    join.positions = args.problem.positions;
    LaunchOf<LossJoinArgs>("loss_join", join)
        .read(&LossJoinArgs::counts, counts)
        .write(&LossJoinArgs::total, total)
        .grid(1)
        .into(program);
  }
  LaunchOf<LossGradArgs> launch(
      (isCrossEntropy ? "cross_entropy_grad" : "nll_grad") + typeSuffix(spec.outputs[0].dtype), args);
  setProblem(launch, spec, 1, isCrossEntropy);
  launch.read(&LossGradArgs::dloss, input(0)).write(&LossGradArgs::dscores, output(0));
  if (reduction == LossReduction::Mean)
    launch.read(&LossGradArgs::total, total);
  launch.grid(blocksFor(args.problem.positions * 32)).into(program);
  return "";
}

} // namespace

std::span<const Row> lossRows() {
  static constexpr Row rows[] = {
      {"", "SoftmaxCrossEntropyLoss", 12, kNewest, compileLoss<true>},
      {"", "NegativeLogLikelihoodLoss", 12, kNewest, compileLoss<false>},
      {"recast", "cross_entropy_grad", 1, kNewest, compileLossGrad<true>},
      {"recast", "nll_loss_grad", 1, kNewest, compileLossGrad<false>},
  };
  return rows;
}

} // namespace recast::cuda
