#include "passes/verify/BuildFlow.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/train/Dialect.h"
#include "passes/verify/FlowBuilder.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/bit.h"
#include "llvm/Support/JSON.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::verify {

void setType(FlowNode &node, Type type) {
  if (auto scaled = dyn_cast<train::ScaledType>(type))
    type = scaled.getTensor();
  auto tensor = dyn_cast<TensorType>(type);
  if (!tensor)
    return;
  Type element = tensor.getElementType();
  node.element = element.isF64()             ? Element::F64
                 : element.isF32()           ? Element::F32
                 : isa<FloatType>(element)   ? Element::Low
                 : element.isInteger(1)      ? Element::Bool
                 : isa<IntegerType>(element) ? Element::Int
                                             : Element::Other;
  auto ranked = dyn_cast<RankedTensorType>(type);
  node.elementType = element.getAsOpaquePointer();
  node.type = ranked ? withoutSymbols(ranked).getAsOpaquePointer() : nullptr;
  node.isSingle = ranked && ranked.hasStaticShape() && ranked.getNumElements() == 1;
}

namespace {

// The number that all elements are; NaN where they differ. Reads no further than the first that differs.
double splatOf(TensorAttr tensor) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (tensor.getType().getNumElements() <= kInlineElems) {
    auto values = asDoubles(tensor);
    return values && !values->empty() && llvm::all_equal(*values) ? values->front() : none;
  }
  ArrayRef<char> bytes = rawBytes(tensor);
  return !bytes.empty() && llvm::all_of(bytes, [](char byte) { return byte == 0; }) ? 0 : none;
}

// Attributes that say what the node computes, not what it is called.
uint64_t signatureOf(Operation *op) {
  Node node(op);
  llvm::hash_code hash = llvm::hash_combine(node.domain(), node.opType());
  for (NamedAttribute attr : op->getAttrs()) {
    StringRef name = attr.getName();
    if (name == "onnx.overload" || !name.starts_with("onnx."))
      hash = llvm::hash_combine(hash, name, attr.getValue().getAsOpaquePointer());
  }
  return hash;
}

} // namespace

FlowBuilder::FlowBuilder(ModuleOp module, FlowGraph &flow)
    : flow(flow), names(mainGraph(module)), bodies(mainGraph(module), names, types),
      top(&mainGraph(module).getBody().front()) {}

ValueId FlowBuilder::of(Value value) {
  auto found = values.find(value);
  return isAbsent(value) || found == values.end() ? kNone : found->second;
}

void FlowBuilder::set(Value result, ValueId value) {
  values[result] = value;
  if (value != kNone && !at(value).type)
    setType(at(value), result.getType());
}

ValueId FlowBuilder::operand(Node node, unsigned i) { return node.input(i) ? of(node.input(i)) : kNone; }

ValueId FlowBuilder::add(Kind kind, Ids mains, Ids sides, uint16_t flags) {
  FlowNode node;
  node.kind = kind;
  node.flags = flags;
  node.loop = loop;
  node.origin = current;
  node.signature = llvm::hash_combine(currentSignature, made++, static_cast<int>(kind));
  for (ValueId input : mains)
    if (input != kNone)
      node.inputs.push_back(input);
  node.mains = static_cast<uint16_t>(node.inputs.size());
  for (ValueId input : sides)
    if (input != kNone)
      node.inputs.push_back(input);
  // Until it is bound to a result: as the first operand.
  if (!node.inputs.empty()) {
    node.element = flow[node.inputs[0]].element;
    node.isSingle = llvm::all_of(node.main(), [&](ValueId input) { return flow[input].isSingle; });
  }
  flow.nodes.push_back(std::move(node));
  ValueId id = static_cast<ValueId>(flow.size() - 1);
  if (!path.empty())
    paths[id] = path;
  return id;
}

ValueId FlowBuilder::bind(Value result, Kind kind, Ids mains, Ids sides, uint16_t flags) {
  ValueId id = add(kind, mains, sides, flags);
  setType(at(id), result.getType());
  set(result, id);
  return id;
}

ValueId FlowBuilder::constant(double number) {
  ValueId id = add(Kind::Constant, {});
  at(id).number = number;
  at(id).isSingle = true;
  at(id).element = Element::F32;
  at(id).signature = llvm::hash_combine(at(id).signature, llvm::bit_cast<uint64_t>(number));
  return id;
}

void FlowBuilder::overwrites(ValueId target, ValueId value, bool isBuffer) {
  for (const NamedValue &source : flow.sources)
    if (source.value == target)
      (isBuffer ? flow.buffers : flow.inPlace).push_back({value, source.name});
}

ValueId FlowBuilder::select(ValueId condition, ValueId ifTrue, ValueId ifFalse) {
  return condition == kNone ? ifTrue : add(Kind::Select, {ifTrue, ifFalse}, {condition}, FlowNode::Elementwise);
}

ValueId FlowBuilder::sum(Ids terms, bool subtract) {
  return add(Kind::Sum, terms, {}, static_cast<uint16_t>(FlowNode::Elementwise | (subtract ? FlowNode::Subtract : 0)));
}

ValueId FlowBuilder::power(ValueId x, float exponent) {
  ValueId id = add(Kind::Power, {x}, {}, FlowNode::Elementwise);
  at(id).exponent = exponent;
  return id;
}

void FlowBuilder::buildGraph() {
  Block &block = *top;
  auto defaults = cast<GraphOp>(top->getParentOp()).getInfo().getAs<ArrayAttr>("defaults");
  for (BlockArgument argument : block.getArguments()) {
    bool hasDefault =
        defaults && argument.getArgNumber() < defaults.size() && !isa<UnitAttr>(defaults[argument.getArgNumber()]);
    flow.sources.push_back({bind(argument, Kind::Source, {}), nameOf(argument).str(), hasDefault});
  }
  visitBody(block);
  for (Value output : block.getTerminator()->getOperands())
    if (ValueId id = of(output); id != kNone)
      flow.outputs.push_back({id, nameOf(output).str()});
  auto callPaths = std::make_shared<decltype(paths)>(std::move(paths));
  flow.describe = [origins = &flow, callPaths](ValueId id) {
    const FlowNode &node = origins->nodes[id];
    for (const NamedValue &source : origins->sources)
      if (source.value == id)
        return "'" + source.name + "'";
    auto *op = static_cast<Operation *>(const_cast<void *>(node.origin));
    if (!op)
      return std::string("a constant");
    auto path = callPaths->find(id);
    return (path == callPaths->end() ? "" : path->second + ": ") + Node(op).describe();
  };
}

void FlowBuilder::visitBody(Block &block) {
  for (Operation &op : block.without_terminator())
    visit(&op);
}

void FlowBuilder::visit(Operation *op) {
  if (isa<AbsentOp>(op))
    return;
  Operation *outerOperator = std::exchange(current, op);
  unsigned outerMade = std::exchange(made, 0u);
  uint64_t outerSignature = currentSignature;
  if (auto initializer = dyn_cast<InitializerOp>(op)) {
    currentSignature = llvm::hash_value(initializer.getValue().getAsOpaquePointer());
    ValueId id = bind(initializer.getResult(), Kind::Constant, {});
    at(id).number = splatOf(initializer.getValue());
    flow.sources.push_back({id, nameOf(initializer.getResult()).str(), true});
  } else if (isNode(op)) {
    Node node(op);
    auto constant = node.is("Constant") ? op->getAttrOfType<TensorAttr>("value") : TensorAttr();
    currentSignature =
        constant ? static_cast<uint64_t>(llvm::hash_value(constant.getAsOpaquePointer())) : signatureOf(op);
    if (llvm::any_of(op->getResults(), [](Value result) { return !elementTypeOf(result); }))
      (void)types.infer(op); // Behind a call, whose results have types now.
    if (node.is("If"))
      visitIf(node);
    else if (node.is("Scan"))
      visitScan(node);
    else if (node.is("Loop"))
      visitLoop(node);
    else if (!addTrain(*this, node) && !addStandard(*this, node) && !visitCall(node) && !addMicrosoft(*this, node) &&
             !visitByBody(node)) {
      SmallVector<ValueId> inputs;
      for (Value input : op->getOperands())
        inputs.push_back(of(input));
      for (Value result : op->getResults())
        bind(result, node.domain().empty() ? Kind::Nonlinear : Kind::Opaque, inputs);
    }
  }
  current = outerOperator;
  made = outerMade;
  currentSignature = outerSignature;
}

void FlowBuilder::visitAdded(Operation *oldFront, Operation *before, Operation *after) {
  SmallVector<Operation *> added;
  for (Operation *op = &top->front(); op != oldFront; op = op->getNextNode()) // Constants go to the front of the graph.
    added.push_back(op);
  bool isSecond = before == nullptr && after->getBlock() == top; // They are before the first operator, too.
  for (Operation *op = before     ? before->getNextNode()
                       : isSecond ? oldFront
                                  : &after->getBlock()->front();
       op != after; op = op->getNextNode())
    added.push_back(op);
  llvm::for_each(added, [&](Operation *op) { visit(op); });
}

// The body is copied before the call, where types are known.
bool FlowBuilder::visitCall(Node node) {
  if (!findFunction(node))
    return false;
  bodies.before(node.operation());
  Operation *oldFront = &top->front(), *before = node->getPrevNode();
  SmallVector<Value> outputs;
  ScopedDiagnosticHandler quiet(node->getContext(), [](Diagnostic &) { return success(); });
  if (failed(inlineFunction(node, bodies, outputs)))
    return false;
  std::string outer = path;
  path += (path.empty() ? "" : ": ") + ("in the call " + node.describe());
  visitAdded(oldFront, before, node.operation());
  path = std::move(outer);
  for (auto [result, output] : llvm::zip(node->getResults(), outputs))
    if (output) {
      if (!isa<RankedTensorType>(result.getType()))
        result.setType(output.getType());
      set(result, of(output));
    }
  return true;
}

bool FlowBuilder::visitByBody(Node node) {
  bool takesScaled = llvm::any_of(node->getOperandTypes(), llvm::IsaPred<train::ScaledType>); // Bodies take tensors.
  if (node.domain() != "recast" || !train::isTrainOp(node->getContext(), node.opType()) || takesScaled)
    return false;
  bodies.before(node.operation());
  Operation *oldFront = &top->front(), *before = node->getPrevNode();
  SmallVector<Value> inputs, outputs;
  for (unsigned i = 0; i < node.numInputs(); ++i)
    inputs.push_back(node.input(i));
  if (failed(train::buildBody(node, bodies, inputs, outputs)))
    return false;
  ValueId firstId = static_cast<ValueId>(flow.size());
  visitAdded(oldFront, before, node.operation());
  for (auto [result, value] : llvm::zip(node->getResults(), outputs))
    if (ValueId id = value ? of(value) : kNone; id != kNone)
      set(result, id);
  for (ValueId id = firstId; id < flow.size(); ++id)
    at(id).origin = node.operation();
  return true;
}

void FlowBuilder::visitIf(Node node) {
  ValueId condition = operand(node, 0);
  SmallVector<ValueId> results[2];
  bool thenFirst = true;
  for (Region &region : node->getRegions()) {
    visitBody(region.front());
    for (Value output : region.front().getTerminator()->getOperands())
      results[region.getRegionNumber()].push_back(of(output));
  }
  // Bodies keep the order of the attributes.
  if (auto graphs = node->getAttrOfType<ArrayAttr>("onnx.graphs"); graphs && !graphs.empty())
    if (auto info = dyn_cast<DictionaryAttr>(graphs[0]))
      if (auto attr = info.getAs<StringAttr>("attribute"))
        thenFirst = attr.getValue() == "then_branch";
  for (auto [i, result] : llvm::enumerate(node->getResults()))
    bind(result, Kind::Select, {results[thenFirst ? 0 : 1][i], results[thenFirst ? 1 : 0][i]}, {condition},
         FlowNode::Elementwise);
}

int FlowBuilder::enterLoop() {
  loopParents.push_back(loop);
  return loop = numLoops++;
}

ValueId FlowBuilder::carry(BlockArgument argument, ValueId initial) { return bind(argument, Kind::Carry, {initial}); }

void FlowBuilder::leaveLoop(Node node, int inner, unsigned numCarried, Ids carried, ValueRange nexts, Ids initials) {
  SmallVector<ValueId> next;
  for (Value value : nexts)
    next.push_back(of(value));
  for (unsigned i = 0; i < numCarried; ++i) {
    FlowNode &node = at(carried[i]);
    if (next[i] != kNone) {
      node.inputs.push_back(next[i]);
      node.mains = static_cast<uint16_t>(node.inputs.size());
    }
  }
  loop = loopParents[inner];
  for (auto [i, result] : llvm::enumerate(node->getResults())) {
    ValueId id = i < numCarried ? bind(result, Kind::LoopResult, {initials[i], next[i]})
                                : bind(result, Kind::Move, {next[i]}, {}, FlowNode::Collects);
    at(id).loop = inner;
  }
}

void FlowBuilder::visitScan(Node node) {
  Block &body = node->getRegion(0).front();
  unsigned numSlices = static_cast<unsigned>(node.getInt("num_scan_inputs", 0));
  unsigned offset = node.opset() == 8 ? 1 : 0; // Scan-8 starts with sequence_lens.
  unsigned numCarried = body.getNumArguments() - numSlices;
  SmallVector<ValueId> initials, carried;
  for (unsigned i = 0; i < numCarried; ++i)
    initials.push_back(operand(node, offset + i));
  int inner = enterLoop();
  for (BlockArgument argument : body.getArguments()) {
    unsigned i = argument.getArgNumber();
    if (i < numCarried)
      carried.push_back(carry(argument, initials[i]));
    else
      bind(argument, Kind::Move, {operand(node, offset + i)}, {}, FlowNode::Slice);
  }
  visitBody(body);
  leaveLoop(node, inner, numCarried, carried, body.getTerminator()->getOperands(), initials);
}

void FlowBuilder::visitLoop(Node node) {
  Block &body = node->getRegion(0).front();
  unsigned numCarried = body.getNumArguments() - 2;
  SmallVector<ValueId> initials, carried;
  for (unsigned i = 0; i < numCarried; ++i)
    initials.push_back(operand(node, 2 + i));
  int inner = enterLoop();
  bind(body.getArgument(0), Kind::Constant, {}, {}, FlowNode::Slice);
  bind(body.getArgument(1), Kind::Constant, {});
  for (unsigned i = 0; i < numCarried; ++i)
    carried.push_back(carry(body.getArgument(2 + i), initials[i]));
  visitBody(body);
  leaveLoop(node, inner, numCarried, carried, body.getTerminator()->getOperands().drop_front(), initials);
}

namespace {

void readMetadata(ModuleOp module, FlowGraph &flow) {
  flow.lossName = getMetadata(module, "recast.loss");
  auto parsed = llvm::json::parse(getMetadata(module, "recast.state"));
  const llvm::json::Object *pairs = parsed ? parsed->getAsObject() : nullptr;
  if (!parsed)
    llvm::consumeError(parsed.takeError());
  if (!pairs)
    return;
  llvm::StringMap<ValueId> sources, outputs;
  for (const NamedValue &source : flow.sources)
    sources[source.name] = source.value;
  for (const NamedValue &output : flow.outputs)
    outputs[output.name] = output.value;
  for (const auto &[input, next] : *pairs) {
    auto source = sources.find(StringRef(input));
    auto output = outputs.find(next.getAsString().value_or(""));
    if (source != sources.end() && output != outputs.end())
      flow.states.push_back({source->second, output->second, StringRef(input).str()});
  }
}

} // namespace

std::unique_ptr<FlowGraph> buildFlow(ModuleOp module) {
  auto flow = std::make_unique<FlowGraph>();
  flow->module = module.clone();
  size_t operations = 0;
  module.walk([&](Operation *) { ++operations; });
  flow->nodes.reserve(2 * operations); // Bodies make several of one.
  FlowBuilder(*flow->module, *flow).buildGraph();
  findArithmeticChoices(*flow);
  readMetadata(module, *flow);
  return flow;
}

} // namespace recast::verify
