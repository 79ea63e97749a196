#include "runtime/compile/Compile.h"
#include "ir/io/Load.h"
#include "ir/onnx/PreviewOptimizers.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "runtime/compile/Unit.h"
#include "runtime/plan/MemoryUse.h"
#include "llvm/Support/JSON.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast {

using compile::Unit;

struct Model::Impl {
  explicit Impl(std::string path) : path(std::move(path)), context(MLIRContext::Threading::DISABLED) {
    context.printOpOnDiagnostic(false);
  }

  std::string path;
  mutable MLIRContext context; ///< Compiling makes new attributes and never changes those that exist.
  OwningOpRef<ModuleOp> module;
  compile::StatePairs state;
  std::vector<InputInfo> inputs;
  std::vector<std::string> outputs, warnings;
};

namespace {

/// Collects what the libraries report while it lives.
class Diagnostics {
public:
  explicit Diagnostics(MLIRContext &context)
      : handler(&context, [this](Diagnostic &diagnostic) {
          if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
            errors += (errors.empty() ? "" : "\n") + diagnostic.str();
          else
            warnings.push_back(diagnostic.str());
          return success();
        }) {}

  /// Everything reported as one Status; the text names the file, where there is one.
  Status status(const std::string &path) const {
    std::string shown = path == "-" ? "standard input" : path;
    std::string text = errors.empty() ? "the model cannot be compiled" : errors;
    return Status::error(StringRef(text).contains(shown) ? text : shown + ": " + text);
  }

  std::string errors;
  std::vector<std::string> warnings;

private:
  ScopedDiagnosticHandler handler;
};

/// Parses metadata_props["recast.state"]: {"<input>": "<output>", ...}.
LogicalResult readState(ModuleOp module, compile::StatePairs &state) {
  std::string text = getMetadata(module, "recast.state");
  if (text.empty())
    return success();
  auto error = [&] { return emitError(UnknownLoc::get(module.getContext())) << "metadata_props 'recast.state' "; };
  auto parsed = llvm::json::parse(text);
  if (!parsed)
    return error() << "is no JSON: " << llvm::toString(parsed.takeError());
  const llvm::json::Object *pairs = parsed->getAsObject();
  if (!pairs)
    return error() << "is no JSON object of input names and output names";
  for (const auto &[input, output] : *pairs) {
    auto name = output.getAsString();
    if (!name)
      return error() << "has no output name for the input '" << input.str() << "'";
    state[input.str()] = name->str();
  }
  return success();
}

InputInfo describe(compile::Values &values, BlockArgument argument) {
  InputInfo info{nameOf(argument).str(), {}, {}, false};
  info.type.dtype = values.dtypeOf(elementTypeOf(argument));
  auto type = dyn_cast<RankedTensorType>(argument.getType());
  for (unsigned i = 0; type && i < type.getRank(); ++i) {
    info.type.dims.push_back(type.isDynamicDim(i) ? -1 : type.getDimSize(i));
    info.symbols.push_back(dimSymbol(type, i).str());
  }
  return info;
}

LogicalResult runPhases(Unit &unit, const CompileOptions &options) {
  compile::markOrigins(unit);
  if (failed(compile::bindInputs(unit, options)) || failed(compile::inlineCalls(unit)))
    return failure();
  compile::removeDead(unit, unit.block); // What nobody reads need not have fixed shapes.
  if (failed(compile::simplify(unit, unit.block)))
    return failure();
  compile::removeDead(unit, unit.block);
  return compile::chooseKernels(unit, options.referenceOnly);
}

/// A plan with its kernels, and regions where asked for. `plain`, where there is none yet, becomes the plan without
/// regions.
FailureOr<std::unique_ptr<Plan>> planOf(Unit &unit, const CompileOptions &options,
                                        const compile::RegionOptions *regions, std::unique_ptr<Plan> &plain) {
  if (failed(runPhases(unit, options)))
    return failure();
  if (options.device == "cuda") {
    if (failed(compile::chooseCudaKernels(unit, options.cudaArchitecture)))
      return failure();
  } else if (regions) {
    if (!plain) {
      auto prepared = compile::copyPrepared(unit);
      auto built = compile::buildPlan(unit, options.inPlace);
      if (failed(built))
        return failure();
      plain = std::move(*built);
      unit.prepared = std::move(prepared);
    }
    compile::formRegions(unit, *regions);
  }
  auto plan = compile::buildPlan(unit, options.inPlace);
  if (succeeded(plan))
    (*plan)->device = options.device;
  return plan;
}

/// The operation that was last to join the region that runs at the plan's fullest step, or at that of the body that the
/// step runs; "" where no region does.
std::string lastAtFullestStep(const Plan &plan) {
  MemoryUse use = memoryUse(plan);
  if (use.fullest < 0)
    return "";
  const Step &step = plan.steps[static_cast<size_t>(use.fullest)];
  auto largest = std::ranges::max_element(step.bodies, {}, &Plan::arenaBytes);
  if (largest != step.bodies.end())
    return lastAtFullestStep(*largest);
  std::vector<std::string> operators = step.spec.attrs.getStrings("operators");
  return operators.size() > 1 ? operators.back() : "";
}

/// `owner` keeps alive what constants may be views of. `plain` becomes the plan without regions, where it has some.
Result<std::unique_ptr<Plan>> compileClone(ModuleOp module, const compile::StatePairs &state, const std::string &path,
                                           std::shared_ptr<const void> owner, const CompileOptions &options,
                                           std::unique_ptr<Plan> &plain) {
  Diagnostics diagnostics(*module.getContext());
  bool hasRegions = options.regions && !options.referenceOnly && options.device == "cpu";
  // Fusing makes operands live until the region runs. Where that takes more memory than it saves, the operation that
  // was last to join the region at the fullest step stands apart; when that does not help, regions reach less far, in
  // the end no further than one operator.
  constexpr int kMostApart = 12;
  compile::RegionOptions regions{.fuses = options.fuseRegions && hasRegions, .minElems = options.regionElems};
  OwningOpRef<ModuleOp> bestModule;
  std::unique_ptr<Unit> bestUnit;
  std::unique_ptr<Plan> best;
  while (true) {
    OwningOpRef<ModuleOp> copy(cast<ModuleOp>(module->clone()));
    auto unit = std::make_unique<Unit>(*copy, state, owner);
    auto plan = planOf(*unit, options, hasRegions ? &regions : nullptr, plain);
    if (failed(plan))
      return diagnostics.status(path);
    bool fits = !regions.fuses || (*plan)->arenaBytes <= plain->arenaBytes;
    std::string last = fits ? "" : lastAtFullestStep(**plan);
    if (!best || (*plan)->arenaBytes < best->arenaBytes) {
      best = std::move(*plan);
      bestUnit = std::move(unit); // Before the module that it refers to.
      bestModule = std::move(copy);
    }
    if (fits)
      break;
    if (!last.empty() && static_cast<int>(regions.apart.size()) < kMostApart && regions.apart.insert(last).second)
      continue;
    regions.fuses = regions.reach > 2;
    regions.reach = 2;
  }
  if (options.generateCode)
    if (Status status = compile::generateCode(*bestUnit, *best, options.emulates); !status.ok())
      return status;
  return std::move(best);
}

} // namespace

int cudaArchitectureOf(std::string_view name) {
  int number = 0;
  bool isNumber = name.starts_with("sm_") && !StringRef(name.substr(3)).getAsInteger(10, number);
  return isNumber && number >= 80 && number < 1000 ? number : 0;
}

Model::Model(std::shared_ptr<const Impl> impl) : impl(std::move(impl)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(const std::string &path) {
  auto impl = std::make_shared<Impl>(path);
  Diagnostics diagnostics(impl->context);
  impl->module = io::loadModel(impl->context, path, {.trainingInfo = io::TrainingInfo::Join});
  if (!impl->module || failed(readState(*impl->module, impl->state)))
    return diagnostics.status(path);
  GraphOp graph = mainGraph(*impl->module);
  for (Operation &op : graph.getBody().front())
    if (Node node(&op); isNode(&op) && isPreviewTrainingDomain(node.domain()) && node.opType() == "Gradient") {
      op.emitError() << "node " << node.describe()
                     << " asks for a derivative, which only recast-opt builds: recast-opt " << path << " -o step.onnx";
      return diagnostics.status(path);
    }
  compile::Values values(nullptr);
  auto defaults = graph.getInfo().getAs<ArrayAttr>("defaults");
  for (BlockArgument argument : graph.getBody().front().getArguments()) {
    InputInfo info = describe(values, argument);
    info.isState = impl->state.contains(info.name);
    info.hasDefault = !info.isState && defaults && isa<TensorAttr>(defaults[argument.getArgNumber()]);
    impl->inputs.push_back(std::move(info));
  }
  for (Value output : graph.getBody().front().getTerminator()->getOperands())
    impl->outputs.push_back(nameOf(output).str());
  impl->warnings = diagnostics.warnings;
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

const std::vector<InputInfo> &Model::inputs() const { return impl->inputs; }
const std::vector<std::string> &Model::outputs() const { return impl->outputs; }
const std::vector<std::string> &Model::warnings() const { return impl->warnings; }

Result<std::unique_ptr<Plan>> Model::compile(const CompileOptions &options) const {
  std::unique_ptr<Plan> plain;
  return compileClone(*impl->module, impl->state, impl->path, impl, options, plain);
}

Result<std::unique_ptr<Plan>> compileModule(ModuleOp module, const CompileOptions &options,
                                            std::unique_ptr<Plan> *withoutRegions) {
  compile::StatePairs state;
  {
    Diagnostics diagnostics(*module.getContext());
    if (failed(readState(module, state)))
      return diagnostics.status("");
  }
  std::unique_ptr<Plan> plain;
  auto plan = compileClone(module, state, "", nullptr, options, plain);
  if (withoutRegions)
    *withoutRegions = std::move(plain);
  return plan;
}

} // namespace recast
