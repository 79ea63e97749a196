// Which steps are generated together: operations that no library takes join the region of what they read.
#include "ir/train/Dialect.h"
#include "runtime/compile/Unit.h"
#include "runtime/fusion/GpuCode.h"
#include "runtime/fusion/Translate.h"
#include "runtime/kernels/cpu/Generated.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Bounds of one region: functions of more would take long to compile.
constexpr size_t kMostOperations = 48, kMostOperands = 40, kMostValues = 1200;
/// Element-operations that are worth a thread.
constexpr int64_t kGrainElems = 16384;

/// Operators of dialect train that are expanded into their bodies where a region takes the whole body.
bool isExpanded(Operation *op) {
  return isa<train::LayerNormGradOp, train::RmsNormGradOp, train::AdamWOp, train::AdamOp, train::NAdamOp,
             train::RAdamOp, train::AdagradOp, train::RmsPropOp, train::LionOp, train::SgdOp, train::EmaOp,
             train::UnscaleOp, train::CheckFiniteOp, train::ScaleLossOp, train::ClipGradValueOp>(op);
}

/// Operations in place of another one, while it is decided whether a region takes them.
class Expansion {
public:
  Expansion(Unit &unit, Operation *op) : unit(unit), op(op) {}
  ~Expansion() {
    if (holder)
      unit.erase(holder);
    for (Operation *last = op->getPrevNode(); last != before; last = op->getPrevNode())
      unit.erase(last);
  }
  bool build() {
    Node node(op);
    NodeBuilder &b = unit.builder;
    before = op->getPrevNode();
    b.before(op);
    b.setScope(node.name().empty() ? nameOf(op->getResult(0)) : node.name());
    SmallVector<Value> inputs, outputs;
    for (unsigned i = 0; i < node.numInputs(); ++i)
      inputs.push_back(node.input(i));
    // A body that cannot be built is no error: the operator has a kernel.
    ScopedDiagnosticHandler quiet(unit.module.getContext(), [](Diagnostic &) { return success(); });
    if (failed(train::buildBody(node, b, inputs, outputs)))
      return false;
    OperationState state(op->getLoc(), ReturnOp::getOperationName());
    state.addOperands(outputs);
    OpBuilder at(op);
    holder = at.create(state); // Simplifying replaces operands.
    Operation *first = before ? before->getNextNode() : &op->getBlock()->front();
    return succeeded(simplify(unit, *op->getBlock(), first, holder));
  }
  /// All operations of the body, in order.
  SmallVector<Operation *> operations() const {
    SmallVector<Operation *> all;
    for (Operation *at = before ? before->getNextNode() : &op->getBlock()->front(); at != holder && at != op;
         at = at->getNextNode())
      all.push_back(at);
    return all;
  }
  Value output(unsigned i) const { return holder->getOperand(i); }

private:
  Unit &unit;
  Operation *op, *before = nullptr, *holder = nullptr;
};

class Group {
public:
  explicit Group(Unit &unit) : unit(unit) {}

  /// Adds an operation; false, and a reason, where the region cannot take it, which then is as it was.
  bool append(Operation *op, std::string &reason);
  bool contains(Operation *op) const { return members.contains(op); }
  /// False where the operation would surely bring too many operands: known before it is translated.
  bool hasRoomFor(Operation *op) const {
    size_t added = op->getNumResults();
    for (Value operand : op->getOperands())
      added += !isAbsent(operand) && !values.contains(operand) && !unit.values.constant(operand);
    return members.size() < kMostOperations && inputs.size() + outputs.size() + added <= kMostOperands;
  }
  /// Calls visit(user) for operations of the block outside of the group that read `value` or a view of it.
  void forEachUser(Value value, function_ref<void(Operation *)> visit) const;
  bool isReadOutside(Value value) const {
    bool isRead = false;
    forEachUser(value, [&](Operation *) { isRead = true; });
    return isRead;
  }

  llvm::SetVector<Operation *> members; ///< In the block's order.
  fusion::Program program;
  fusion::RegionBuilder builder;
  SmallVector<Value> inputs, outputs; ///< Of the region.

private:
  bool translateOp(Operation *op, std::string &reason);
  bool translateBody(Operation *op, std::string &reason);
  bool addOp(Operation *op, std::string &reason);
  int valueOf(Value value);
  bool close(std::string &reason);

  Unit &unit;
  llvm::DenseMap<Value, int> values;
};

void Group::forEachUser(Value value, function_ref<void(Operation *)> visit) const {
  Block *block = members.empty() ? value.getParentBlock() : members.front()->getBlock();
  for (Operation *user : value.getUsers()) {
    Operation *at = block->findAncestorOpInBlock(*user);
    if (!at || contains(at))
      continue;
    if (at == user && sharesOperand(unit, user))
      forEachUser(user->getResult(0), visit);
    else
      visit(at);
  }
}

/// 0, 1, 2, ...
bool isCounter(const Constant &constant) {
  if (constant.type.dtype != DType::I64)
    return false;
  const int64_t *numbers = static_cast<const int64_t *>(constant.data.bytes);
  for (int64_t i = 0; i < constant.type.elems(); ++i)
    if (numbers[i] != i)
      return false;
  return true;
}

int Group::valueOf(Value value) {
  if (auto known = values.find(value); known != values.end())
    return known->second;
  TensorType type;
  if (!unit.values.typeOf(value, type).empty() || !type.present())
    return -1;
  int made = -1;
  if (const Constant *constant = unit.values.constant(value);
      constant && type.elems() == 1 && byteSize(type.dtype) && !isFloat8(type.dtype)) {
    fusion::Expr expr{.op = fusion::Op::Constant, .type = type.dtype, .dims = type.dims};
    dispatchAny(type.dtype, [&]<typename T>() {
      T element = *static_cast<const T *>(constant->data.bytes);
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
        expr.number = static_cast<double>(static_cast<float>(element));
      else if constexpr (std::is_floating_point_v<T>)
        expr.number = static_cast<double>(element);
      else
        expr.integer = static_cast<int64_t>(element);
    });
    made = builder.add(std::move(expr));
  } else if (constant && isCounter(*constant)) {
    made = builder.counter(type.dims);
  } else if (Value source = sourceOf(unit, value); source != value) {
    made = builder.view(valueOf(source), type.dims);
  } else {
    made = builder.input(type);
    inputs.push_back(value);
  }
  values[value] = made;
  return made;
}

/// One operation as it is.
bool Group::translateOp(Operation *op, std::string &reason) {
  auto prepared = unit.prepared.find(op);
  std::optional<StepSpec> made;
  if (prepared == unit.prepared.end()) {
    auto spec = makeSpec(unit, op);
    if (failed(spec))
      return false;
    made = std::move(*spec);
  }
  const StepSpec &spec = made ? *made : prepared->second.spec;
  SmallVector<int> in;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    in.push_back(isAbsent(operand) || !fusion::readsValue(spec, i) ? -1 : valueOf(operand));
  std::vector<int> out;
  if (!fusion::translate(spec, builder, in, out, reason))
    return false;
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    if (i < out.size() && spec.outputs[i].present())
      values[result] = builder.view(out[i], spec.outputs[i].dims);
    else if (!result.use_empty())
      return false;
  return true;
}

bool Group::translateBody(Operation *op, std::string &reason) {
  Expansion body(unit, op);
  // The body's values are gone when it is, and others may take their addresses.
  llvm::scope_exit forget([&] {
    for (Operation *inner : body.operations())
      for (Value result : inner->getResults())
        values.erase(result);
  });
  if (!body.build()) {
    reason = "its body cannot be built";
    return false;
  }
  for (Operation *inner : body.operations()) {
    if (isStructure(inner) || inner->use_empty() ||
        llvm::all_of(inner->getResults(), [&](Value v) { return unit.values.constant(v) != nullptr; }))
      continue;
    if (inner->getNumRegions() || !translateOp(inner, reason)) {
      reason = (Node(inner).opType() + " in its body: " + reason).str();
      return false;
    }
  }
  for (OpResult result : op->getResults())
    if (!isAbsent(result) && !result.use_empty())
      values[result] = valueOf(body.output(result.getResultNumber()));
  SmallVector<Operation *> all = body.operations();
  for (Value input : inputs)
    if (llvm::is_contained(all, input.getDefiningOp())) {
      reason = "a table in its body";
      return false;
    }
  return true;
}

bool Group::addOp(Operation *op, std::string &reason) {
  bool isDone = isExpanded(op) ? translateBody(op, reason) : translateOp(op, reason);
  if (!isDone)
    return false;
  members.insert(op);
  return close(reason);
}

/// Finds the outputs and the loops.
bool Group::close(std::string &reason) {
  outputs.clear();
  builder.region.outputs.clear();
  program = {};
  if (members.size() > kMostOperations || builder.region.values.size() > kMostValues) {
    reason = "the region is large enough";
    return false;
  }
  for (Operation *op : members)
    for (Value result : op->getResults())
      if (!isAbsent(result) && isReadOutside(result)) {
        outputs.push_back(result);
        builder.region.outputs.push_back(values.at(result));
      }
  if (inputs.size() + outputs.size() > kMostOperands) {
    reason = "the region has enough operands";
    return false;
  }
  auto isWide = [](const TensorType &type) { return type.dtype == DType::F64 && type.elems() > 1; };
  for (int output : builder.region.outputs)
    if (isWide({builder.typeOf(output), builder.dimsOf(output)})) {
      reason = "f64";
      return false;
    }
  if (llvm::any_of(builder.region.inputs, isWide)) {
    reason = "f64";
    return false;
  }
  if (!fusion::schedule(builder.region, program, reason))
    return false;
  // Two loops over everything are no better than two steps, which may stand apart.
  int64_t most = 0, large = 0;
  for (const fusion::Phase &phase : program.phases)
    most = std::max(most, phase.count);
  for (const fusion::Phase &phase : program.phases)
    large += phase.count * 2 > most;
  if (large > 1 && most > 1 && members.size() > 1) {
    reason = "it needs a loop of its own";
    return false;
  }
  return true;
}

bool Group::append(Operation *op, std::string &reason) {
  size_t numValues = builder.region.values.size(), numInputs = inputs.size(), numChecks = builder.region.checks.size();
  llvm::DenseMap<Value, int> before = values;
  if (addOp(op, reason))
    return true;
  members.remove(op);
  builder.region.values.resize(numValues);
  builder.region.inputs.resize(numInputs);
  builder.region.checks.erase(builder.region.checks.begin() + static_cast<int64_t>(numChecks),
                              builder.region.checks.end());
  inputs.resize(numInputs);
  values = std::move(before);
  if (!members.empty()) {
    std::string none;
    close(none);
  }
  return false;
}

class Former {
public:
  Former(Unit &unit, Block &block, const RegionOptions &options) : unit(unit), block(block), options(options) {}
  void run();

private:
  std::string describe(Operation *op) const {
    const StepSpec &spec = unit.prepared.at(op).spec;
    return (spec.domain.empty() ? "" : spec.domain + ".") + spec.op + " '" + spec.name + "'";
  }
  bool isCandidate(Operation *op) const;
  int64_t elemsOf(Operation *op) const;
  bool canMove(const Group &group, Operation *to);
  SmallVector<int> producersOf(Operation *op);
  void replace(Group &group);
  Prepared prepare(Operation *op, Group &group);

  Unit &unit;
  Block &block;
  const RegionOptions &options;
  llvm::DenseMap<Operation *, int> position;
  std::vector<std::unique_ptr<Group>> groups;
  llvm::DenseMap<Operation *, int> groupOf;
  llvm::DenseMap<Value, Value> replaced; ///< Results of operations that are in regions now.
};

int64_t Former::elemsOf(Operation *op) const {
  const StepSpec &spec = unit.prepared.at(op).spec;
  int64_t most = 0;
  for (const std::vector<TensorType> *types : {&spec.inputs, &spec.outputs})
    for (const TensorType &type : *types)
      if (type.present())
        most = std::max(most, type.elems());
  return most;
}

bool Former::isCandidate(Operation *op) const {
  auto prepared = unit.prepared.find(op);
  if (prepared == unit.prepared.end() || op->getNumRegions() || prepared->second.library != "reference" ||
      isa<train::OffloadOp, train::FetchOp>(op))
    return false;
  // A generated step checks labels, and nothing else.
  if (prepared->second.mayFail && (options.isForGpu || !isa<SoftmaxCrossEntropyLossOp, train::CrossEntropyGradOp>(op)))
    return false;
  for (const TensorType &type : prepared->second.spec.outputs)
    if (type.dtype == DType::F64 && (!options.isForGpu || type.elems() > 1))
      return false;
  return elemsOf(op) >= options.minElems;
}

/// True where nothing outside reads the group's values before `to`, which would join it.
bool Former::canMove(const Group &group, Operation *to) {
  int at = position.lookup(to);
  if (at - position.lookup(group.members.back()) > options.reach)
    return false;
  bool isFree = true;
  for (Operation *op : group.members)
    for (Value result : op->getResults())
      group.forEachUser(result, [&](Operation *user) { isFree &= user == to || position.lookup(user) > at; });
  return isFree;
}

/// Groups that the operation reads from, the latest first.
SmallVector<int> Former::producersOf(Operation *op) {
  SmallVector<int> found;
  for (Value operand : op->getOperands())
    if (Operation *producer = sourceOf(unit, operand).getDefiningOp())
      if (auto group = groupOf.find(producer); group != groupOf.end() && !llvm::is_contained(found, group->second))
        found.push_back(group->second);
  llvm::sort(found, [&](int a, int b) {
    return position.lookup(groups[static_cast<size_t>(a)]->members.back()) >
           position.lookup(groups[static_cast<size_t>(b)]->members.back());
  });
  return found;
}

Prepared Former::prepare(Operation *op, Group &group) {
  Prepared prepared;
  StepSpec &spec = prepared.spec;
  const StepSpec &last = unit.prepared.at(group.members.back()).spec;
  spec.name = last.name;
  spec.domain = kGeneratedLibrary;
  spec.op = "region";
  spec.version = 1;
  std::vector<std::string> operators;
  for (Operation *member : group.members)
    operators.push_back(describe(member));
  for (Value operand : op->getOperands()) {
    TensorType type;
    [[maybe_unused]] std::string problem = unit.values.typeOf(operand, type);
    spec.inputs.push_back(std::move(type));
  }
  for (Value output : group.outputs) {
    TensorType type;
    [[maybe_unused]] std::string problem = unit.values.typeOf(output, type);
    spec.outputs.push_back(std::move(type));
  }
  for (auto [operand, type] : llvm::zip(op->getOperands(), spec.inputs)) {
    const Constant *constant = unit.values.constant(operand);
    spec.constants.push_back({type.dtype, type.dims, constant ? const_cast<void *>(constant->data.bytes) : nullptr});
  }
  std::string name = fusion::contentName(group.builder.region, group.program);
  std::vector<std::string> entries;
  std::vector<int64_t> ranges, grains, pairs;
  for (auto [i, phase] : llvm::enumerate(group.program.phases)) {
    entries.push_back(fusion::entryName(name, i));
    ranges.push_back(phase.ranges());
    grains.push_back(std::max<int64_t>(1, kGrainElems / std::max<int64_t>(1, phase.rowsPerRange * phase.inner)));
  }
  prepared.inPlace = options.isForGpu ? fusion::gpuInPlace(group.builder.region, group.program)
                                      : fusion::inPlaceOf(group.program, group.inputs.size(), group.outputs.size());
  for (InPlace pair : prepared.inPlace) {
    pairs.push_back(static_cast<int64_t>(pair.output));
    pairs.push_back(static_cast<int64_t>(pair.input));
  }
  if (options.isForGpu) {
    std::vector<int64_t> blocks, threads, operands;
    for (const fusion::GpuLaunch &launch : fusion::gpuLaunches(name, group.builder.region, group.program)) {
      blocks.push_back(launch.blocks);
      threads.push_back(launch.threads);
      operands.push_back(static_cast<int64_t>(launch.operands.size()));
      operands.insert(operands.end(), launch.operands.begin(), launch.operands.end());
    }
    spec.attrs.set("operands", std::move(operands));
    spec.attrs.set("blocks", std::move(blocks));
    spec.attrs.set("threads", std::move(threads));
  }
  spec.attrs.set("entries", std::move(entries));
  spec.attrs.set("ranges", std::move(ranges));
  spec.attrs.set("grains", std::move(grains));
  spec.attrs.set("in_place", std::move(pairs));
  spec.attrs.set("workspace", static_cast<int64_t>(group.program.workspaceBytes));
  spec.attrs.set("operators", std::move(operators));
  std::vector<int64_t> checks;
  std::vector<std::string> checked;
  for (const fusion::LabelCheck &check : group.builder.region.checks) {
    checks.insert(checks.end(), {check.input, check.classes, check.ignores, check.ignoreIndex});
    checked.push_back(check.node);
  }
  if (!checks.empty()) {
    spec.attrs.set("checks", std::move(checks));
    spec.attrs.set("checked", std::move(checked));
    prepared.mayFail = true;
  }
  prepared.library = kGeneratedLibrary;
  prepared.workspaceBytes = group.program.workspaceBytes;
  unit.regions.push_back({std::move(group.builder.region), std::move(group.program), std::move(name)});
  return prepared;
}

/// One operation in the place of the last one takes the place of all.
void Former::replace(Group &group) {
  Operation *last = group.members.back();
  MLIRContext *context = unit.module.getContext();
  OpBuilder b(context);
  b.setInsertionPointAfter(last);
  OperationState state(last->getLoc(), NodeGenericOp::getOperationName());
  state.addAttribute("onnx.op_type", b.getStringAttr("region"));
  state.addAttribute("onnx.domain", b.getStringAttr(kGeneratedLibrary));
  for (Value &input : group.inputs)
    if (Value now = replaced.lookup(input))
      input = now;
  state.addOperands(group.inputs);
  SmallVector<StringRef> names;
  for (Value output : group.outputs) {
    state.addTypes(output.getType());
    names.push_back(nameOf(output));
  }
  state.addAttribute("onnx.outputs", stringArray(context, names));
  Operation *region = b.create(state);
  std::vector<std::string> origins;
  for (Operation *member : group.members)
    if (std::string origin = originOf(member).str(); origin != originOf(last) && !llvm::is_contained(origins, origin))
      origins.push_back(std::move(origin));
  Prepared prepared = prepare(region, group);
  prepared.moreOrigins = std::move(origins);
  for (auto [output, result] : llvm::zip(group.outputs, region->getResults())) {
    output.replaceAllUsesWith(result);
    replaced[output] = result;
  }
  // Views of what the region makes come after it; those that only the region read are gone.
  auto moveViews = [&](auto &&self, Value value, Operation *after) -> Operation * {
    for (Operation *user : llvm::make_early_inc_range(value.getUsers())) {
      if (user->getBlock() != &block || !sharesOperand(unit, user))
        continue;
      if (user->isBeforeInBlock(region)) {
        user->moveAfter(after);
        after = user;
      }
      after = self(self, user->getResult(0), after);
    }
    return after;
  };
  Operation *after = region;
  for (Value result : region->getResults())
    after = moveViews(moveViews, result, after);
  SmallVector<Operation *> members(group.members.begin(), group.members.end());
  for (Operation *member : llvm::reverse(members)) {
    auto eraseViews = [&](auto &&self, Value value) -> void {
      for (Operation *user : llvm::make_early_inc_range(value.getUsers())) {
        self(self, user->getResult(0));
        unit.erase(user);
      }
    };
    for (Value result : member->getResults())
      eraseViews(eraseViews, result);
    unit.erase(member);
  }
  unit.prepared[region] = std::move(prepared);
}

void Former::run() {
  SmallVector<Operation *> all;
  for (Operation &op : block) {
    position[&op] = static_cast<int>(all.size());
    all.push_back(&op);
  }
  for (Operation *op : all) {
    if (!isCandidate(op))
      continue;
    std::string reason;
    bool isTaken = false;
    if (options.fuses && !options.apart.contains(describe(op)))
      for (int group : producersOf(op)) {
        std::string none;
        if (isTaken || !groups[static_cast<size_t>(group)]->hasRoomFor(op) ||
            !canMove(*groups[static_cast<size_t>(group)], op) || !groups[static_cast<size_t>(group)]->append(op, none))
          continue;
        groupOf[op] = group;
        isTaken = true;
      }
    if (isTaken)
      continue;
    auto group = std::make_unique<Group>(unit);
    if (group->append(op, reason)) {
      groupOf[op] = static_cast<int>(groups.size());
      groups.push_back(std::move(group));
    } else {
      unit.prepared.at(op).refusals.push_back("generated: " + reason);
    }
  }
  for (auto &group : groups)
    replace(*group);
}

void formRegions(Unit &unit, Block &block, const RegionOptions &options) {
  for (Operation &op : block)
    for (Region &body : op.getRegions())
      formRegions(unit, body.front(), options);
  Former(unit, block, options).run();
}

} // namespace

void formRegions(Unit &unit, const RegionOptions &options) {
  if (options.isForGpu || fusion::whyNoCode().empty())
    formRegions(unit, unit.block, options);
}

std::unordered_map<Operation *, Prepared> copyPrepared(const Unit &unit) {
  std::unordered_map<Operation *, Prepared> copy = unit.prepared;
  for (auto &[op, prepared] : copy)
    for (size_t i = 0; i < prepared.spec.constants.size(); ++i)
      prepared.spec.constants[i].dims = prepared.spec.inputs[i].dims;
  return copy;
}

Status generateCode(Unit &unit, Plan &plan, bool emulates) {
  if (unit.regions.empty())
    return Status::success();
  std::vector<fusion::Kernel> kernels;
  for (const GeneratedRegion &region : unit.regions)
    kernels.push_back({&region.region, &region.program, region.name});
  if (plan.device == "cuda") {
    Result<std::string> ptx = fusion::compilePtx(kernels);
    if (!ptx)
      return ptx.status();
    plan.code.push_back({CodeObject::Ptx, fusion::kPtxArchitecture, std::move(*ptx)});
    if (!emulates)
      return Status::success();
    Result<std::string> emulated = fusion::compileEmulated(kernels);
    if (!emulated)
      return emulated.status();
    plan.code.push_back({CodeObject::SharedObject, fusion::kEmulatedTarget, std::move(*emulated)});
    return Status::success();
  }
  Result<std::string> object = fusion::compileKernels(kernels);
  if (!object)
    return object.status();
  plan.code.push_back({CodeObject::SharedObject, fusion::hostTarget(), std::move(*object)});
  return Status::success();
}

} // namespace recast::compile
