// Buffers, lifetimes and the plan itself.
#include "ir/train/Dialect.h"
#include "runtime/compile/Placement.h"
#include "runtime/compile/Reuse.h"
#include "runtime/kernels/Parallel.h"
#include <cassert>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

static_assert(std::is_nothrow_move_constructible_v<Step>, "spec.constants refers to dims of spec.inputs: steps move");

class PlanBuilder {
public:
  PlanBuilder(Unit &unit, bool inPlace) : PlanBuilder(unit, unit.block, nullptr, inPlace) {}
  FailureOr<std::unique_ptr<Plan>> run();

private:
  /// Of a body: `outer` is the builder of the plan around it.
  PlanBuilder(Unit &unit, Block &block, PlanBuilder *outer, bool inPlace)
      : unit(unit), block(block), outer(outer), inPlace(inPlace), reuse(unit, block, inPlace),
        plan(std::make_unique<Plan>()) {
    plan->threads = threadCount();
  }
  std::unique_ptr<Plan> runBody();
  void addSteps();
  void addBodies(Operation *op, Step &step);
  LogicalResult addArguments();
  int addBuffer(Value value, TensorType type, Place place);
  int addViewOf(int root, Value value, TensorType type);
  int addResult(OpResult result, TensorType type, const Step &step, const Prepared &prepared);
  /// The buffer of an operand: made now if it is a constant. -1 where it is absent.
  int bufferOf(Value value);
  void addStep(Operation *op, Prepared &prepared);
  void addView(Operation *op);
  LogicalResult addOutputs();
  void place();

  int now() const { return static_cast<int>(plan->steps.size()); }

  Unit &unit;
  Block &block;
  PlanBuilder *outer;
  bool inPlace;
  Reuse reuse;
  std::vector<Value> captured; ///< Of a body, in the order of first use.
  std::unique_ptr<Plan> plan;
  llvm::DenseMap<Value, int> buffers;
  placement::Problem problem, hostProblem;
  std::vector<int> itemOf;          ///< One a buffer: its item of the problem; -1 outside of the arena.
  std::vector<int> workspaceItemOf; ///< One a step.
  /// The same of the memory on the host: by buffer, and by step with bodies.
  llvm::DenseMap<int, int> hostItemOf, hostItemOfStep;
};

int PlanBuilder::addBuffer(Value value, TensorType type, Place place) {
  int index = static_cast<int>(plan->buffers.size());
  plan->buffers.push_back({nameOf(value).str(), std::move(type), place, 0});
  itemOf.push_back(-1);
  buffers[value] = index;
  return index;
}

/// `root` is no view itself.
int PlanBuilder::addViewOf(int root, Value value, TensorType type) {
  int index = addBuffer(value, std::move(type), Place::View);
  plan->buffers.back().offset = static_cast<size_t>(root);
  itemOf.back() = itemOf[static_cast<size_t>(root)];
  return index;
}

LogicalResult PlanBuilder::addArguments() {
  for (BlockArgument argument : unit.block.getArguments()) {
    std::string name = nameOf(argument).str();
    bool isState = unit.state.contains(name);
    TensorAttr initial = unit.initial[argument.getArgNumber()];
    if (!isState && initial && argument.use_empty())
      continue; // A default that became a constant.
    TensorType type;
    if (std::string text = unit.values.typeOf(argument, type); !text.empty())
      return emitError(UnknownLoc::get(unit.module.getContext())) << "input '" << name << "': " << text;
    int index = addBuffer(argument, std::move(type), isState ? Place::State : Place::Input);
    if (!isState)
      plan->inputs.push_back(index);
    if (!initial || !isState)
      continue;
    Data data = unit.values.dataOf(initial);
    if (!data.bytes)
      return emitError(UnknownLoc::get(unit.module.getContext()))
             << "state input '" << name << "': its initial value is no dense tensor of numbers";
    plan->data[index] = std::move(data);
  }
  return success();
}

int PlanBuilder::bufferOf(Value value) {
  if (isAbsent(value))
    return -1;
  if (auto at = buffers.find(value); at != buffers.end()) {
    if (int item = itemOf[static_cast<size_t>(at->second)]; item >= 0)
      problem.items[static_cast<size_t>(item)].last = now();
    if (auto item = hostItemOf.find(at->second); item != hostItemOf.end())
      hostProblem.items[static_cast<size_t>(item->second)].last = now();
    return at->second;
  }
  const Constant *constant = unit.values.constant(value);
  if (!constant) {
    assert(outer && value.getParentBlock() != &block && "operands are inputs, constants or results of earlier steps");
    TensorType type;
    [[maybe_unused]] std::string text = unit.values.typeOf(value, type);
    assert(text.empty());
    int index = addBuffer(value, std::move(type), Place::Outer);
    plan->buffers.back().offset = captured.size(); // addBodies() adds the node's own operands.
    captured.push_back(value);
    return index;
  }
  int index = addBuffer(value, constant->type, Place::Constant);
  plan->data[index] = constant->data;
  return index;
}

void PlanBuilder::addStep(Operation *op, Prepared &prepared) {
  Step step;
  for (Value operand : op->getOperands())
    step.inputs.push_back(bufferOf(operand));
  addBodies(op, step);
  for (const Plan &body : step.bodies) {
    prepared.workspaceBytes = std::max(prepared.workspaceBytes, body.arenaBytes);
    step.hostBytes = std::max(step.hostBytes, body.hostBytes);
  }
  if (step.hostBytes) {
    hostItemOfStep[now()] = static_cast<int>(hostProblem.items.size());
    hostProblem.items.push_back({step.hostBytes, now(), now()});
  }
  for (auto [result, type] : llvm::zip(op->getResults(), prepared.spec.outputs))
    step.outputs.push_back(type.present() ? addResult(result, type, step, prepared) : -1);
  workspaceItemOf.push_back(prepared.workspaceBytes ? static_cast<int>(problem.items.size()) : -1);
  if (prepared.workspaceBytes)
    problem.items.push_back({prepared.workspaceBytes, now(), now()});
  step.origin = originOf(op).str();
  step.moreOrigins = std::move(prepared.moreOrigins);
  step.spec = std::move(prepared.spec);
  step.library = std::move(prepared.library);
  step.refusals = std::move(prepared.refusals);
  step.workspaceBytes = prepared.workspaceBytes;
  step.inPlace = prepared.inPlace;
  plan->steps.push_back(std::move(step));
}

/// Whether the result is a copy in the host's memory: what else than copies back reads it is kept in the arena.
bool isOffloaded(OpResult result) {
  Operation *op = result.getOwner();
  return isa<train::OffloadOp>(op) && llvm::all_of(result.getUsers(), [&](Operation *user) {
           return isa<train::FetchOp>(user) && user->getBlock() == op->getBlock();
         });
}

/// A result lies where a state does, or where an operand that dies here does, or has memory of its own.
int PlanBuilder::addResult(OpResult result, TensorType type, const Step &step, const Prepared &prepared) {
  if (isOffloaded(result)) {
    int index = addBuffer(result, std::move(type), Place::Host);
    hostItemOf[index] = static_cast<int>(hostProblem.items.size());
    hostProblem.items.push_back({plan->buffers.back().type.bytes(), now(), now()});
    return index;
  }
  if (BlockArgument state = reuse.placeOf(result))
    return addViewOf(buffers.lookup(state), result, std::move(type));
  auto itemAt = [&](int buffer) { return buffer < 0 ? -1 : itemOf[static_cast<size_t>(buffer)]; };
  placement::Item item{type.bytes(), now(), now()};
  for (InPlace pair : prepared.inPlace) {
    if (!inPlace || pair.output != result.getResultNumber())
      continue;
    Value operand = result.getOwner()->getOperand(static_cast<unsigned>(pair.input));
    int candidate = itemAt(step.inputs[pair.input]);
    bool isTaken = llvm::any_of(step.outputs, [&](int output) {
      return itemAt(output) >= 0 && problem.items[static_cast<size_t>(itemAt(output))].takesOver == candidate;
    });
    if (candidate < 0 || isTaken || problem.items[static_cast<size_t>(candidate)].bytes != item.bytes ||
        !reuse.isLastRead(operand, result.getOwner()) || !reuse.allows(result, operand))
      continue;
    item.takesOver = candidate;
    break;
  }
  int index = addBuffer(result, std::move(type), Place::Arena);
  itemOf.back() = static_cast<int>(problem.items.size());
  problem.items.push_back(item);
  return index;
}

void PlanBuilder::addBodies(Operation *op, Step &step) {
  for (Region &region : op->getRegions()) {
    PlanBuilder builder(unit, region.front(), this, inPlace);
    std::unique_ptr<Plan> body = builder.runBody();
    for (Buffer &buffer : body->buffers)
      if (buffer.place == Place::Outer)
        buffer.offset += step.inputs.size();
    for (Value value : builder.captured)
      step.inputs.push_back(bufferOf(value));
    step.bodies.push_back(std::move(*body));
  }
}

void PlanBuilder::addView(Operation *op) {
  TensorType type;
  [[maybe_unused]] std::string text = unit.values.typeOf(op->getResult(0), type);
  assert(text.empty());
  int from = bufferOf(sourceOf(unit, op->getOperand(0)));
  addViewOf(plan->rootOf(from), op->getResult(0), std::move(type));
}

LogicalResult PlanBuilder::addOutputs() {
  auto error = [&] { return emitError(UnknownLoc::get(unit.module.getContext())) << "recast.state: "; };
  std::map<std::string, std::string> inputOf;
  for (const auto &[input, output] : unit.state)
    if (!inputOf.try_emplace(output, input).second)
      return error() << "the output '" << output << "' updates both '" << inputOf[output] << "' and '" << input << "'";
  std::map<std::string, int> stateBuffers;
  for (BlockArgument argument : unit.block.getArguments())
    if (std::string name = nameOf(argument).str(); unit.state.contains(name))
      stateBuffers[name] = buffers.lookup(argument);
  for (auto [name, value] : llvm::zip(unit.outputNames, unit.block.getTerminator()->getOperands())) {
    Output output{name, bufferOf(value), -1};
    if (auto input = inputOf.find(name); input != inputOf.end()) {
      auto buffer = stateBuffers.find(input->second);
      if (buffer == stateBuffers.end())
        return error() << "'" << input->second << "' is no graph input";
      output.updates = buffer->second;
      const Buffer &from = plan->buffers[static_cast<size_t>(output.buffer)];
      const Buffer &to = plan->buffers[static_cast<size_t>(output.updates)];
      if (from.type != to.type)
        return error() << "output '" << name << "' is " << toString(from.type) << ", but the state input '"
                       << input->second << "' that it updates is " << toString(to.type);
      inputOf.erase(input);
    }
    plan->outputs.push_back(std::move(output));
  }
  if (!inputOf.empty())
    return error() << "'" << inputOf.begin()->first << "', the new value of '" << inputOf.begin()->second
                   << "', is no graph output";
  return success();
}

void PlanBuilder::place() {
  placement::Solution solution = placement::solve(problem);
  assert(placement::check(problem, solution).empty());
  plan->arenaBytes = solution.bytes;
  for (auto [buffer, item] : llvm::zip(plan->buffers, itemOf))
    if (buffer.place == Place::Arena)
      buffer.offset = solution.offsets[static_cast<size_t>(item)];
  for (auto [step, item] : llvm::zip(plan->steps, workspaceItemOf))
    if (item >= 0)
      step.workspaceOffset = solution.offsets[static_cast<size_t>(item)];
  placement::Solution host = placement::solve(hostProblem);
  assert(placement::check(hostProblem, host).empty());
  plan->hostBytes = host.bytes;
  for (auto [buffer, item] : hostItemOf)
    plan->buffers[static_cast<size_t>(buffer)].offset = host.offsets[static_cast<size_t>(item)];
  for (auto [step, item] : hostItemOfStep)
    plan->steps[static_cast<size_t>(step)].hostOffset = host.offsets[static_cast<size_t>(item)];
}

void PlanBuilder::addSteps() {
  for (Operation &op : block)
    if (auto prepared = unit.prepared.find(&op); prepared != unit.prepared.end())
      addStep(&op, prepared->second);
    else if (!isStructure(&op) && !unit.values.constant(op.getResult(0)))
      addView(&op);
}

std::unique_ptr<Plan> PlanBuilder::runBody() {
  llvm::DenseSet<Value> states;
  for (auto [value, state] : carriedStates(unit, block))
    states.insert(state);
  for (BlockArgument argument : block.getArguments()) {
    TensorType type;
    bool isRead = (!argument.use_empty() || states.contains(argument)) && unit.values.typeOf(argument, type).empty();
    plan->inputs.push_back(isRead ? addBuffer(argument, std::move(type), Place::Input) : -1);
  }
  addSteps();
  for (Value value : block.getTerminator()->getOperands())
    plan->outputs.push_back({nameOf(value).str(), bufferOf(value), -1});
  place();
  return std::move(plan);
}

FailureOr<std::unique_ptr<Plan>> PlanBuilder::run() {
  if (failed(addArguments()))
    return failure();
  addSteps();
  // The last use of an output is after the last step.
  if (failed(addOutputs()))
    return failure();
  place();
  if (auto entries = unit.module->getAttrOfType<ArrayAttr>("onnx.metadata"))
    for (Attribute entry : entries)
      plan->metadata[cast<StringAttr>(cast<ArrayAttr>(entry)[0]).str()] =
          cast<StringAttr>(cast<ArrayAttr>(entry)[1]).str();
  return std::move(plan);
}

} // namespace

FailureOr<std::unique_ptr<Plan>> buildPlan(Unit &unit, bool inPlace) { return PlanBuilder(unit, inPlace).run(); }

} // namespace recast::compile
