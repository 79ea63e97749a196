// recast-opt: rewrites a model. Flags and options only; the work is in the libraries.
#include "ir/io/Load.h"
#include "ir/io/MappedFile.h"
#include "ir/io/Save.h"
#include "ir/onnx/Node.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Support/Timing.h"
#include "mlir/Transforms/Passes.h"
#include "passes/Passes.h"
#include "passes/Pipelines.h"
#include "passes/Report.h"
#include "passes/checkpoint/Budget.h"
#include "passes/forms/OrtOptimizer.h"
#include "passes/step/ParameterGroups.h"
#include "runtime/compile/Compile.h"
#include "tools/common/Diagnostics.h"
#include "tools/common/FactsPage.h"
#include "tools/common/MeasureMemory.h"
#include "tools/recast-opt/ApplyState.h"
#include "tools/recast-opt/Calibrate.h"
#include "tools/recast-opt/EmitPlan.h"
#include "tools/recast-opt/OptimizerFlags.h"
#include <cmath>

using namespace recast;
namespace cl = llvm::cl;

namespace {

cl::OptionCategory category("Options of recast-opt");

template <typename T> struct Flag : cl::opt<T> {
  template <typename... Mods>
  Flag(llvm::StringRef name, llvm::StringRef text, const T &initial, const Mods &...mods)
      : cl::opt<T>(name, cl::desc(text), cl::init(initial), cl::cat(category), mods...) {}
};
struct Globs : cl::list<std::string> {
  Globs(llvm::StringRef name, llvm::StringRef text, llvm::StringRef value = "GLOB,...")
      : cl::list<std::string>(name, cl::CommaSeparated, cl::desc(text), cl::value_desc(value), cl::cat(category)) {}
};

cl::opt<std::string> input(cl::Positional, cl::desc("MODEL (.onnx, .onnxtxt, .mlir, - for stdin)"), cl::cat(category));
Flag<std::string> output("o", "Where the result goes (- for stdout)", "", cl::value_desc("OUT"));
cl::opt<std::string>
    emitKind("emit", cl::desc("step, gradient, forward, inference, training-info, mlir or plan: what OUT holds"),
             cl::init("step"), cl::cat(category));
Flag<std::string> loss("loss", "Output that is the loss", "", cl::value_desc("NAME"));
Globs train("train", "Tensors to train instead of the default choice");
Globs freeze("freeze", "Parameters not to train");
cl::list<std::string> paddingIndex(
    "padding-index", cl::CommaSeparated, cl::value_desc("GLOB=N"), cl::cat(category),
    cl::desc("Row N of embedding tables that look-ups give no gradient, or none (PyTorch's padding_idx; default: the "
             "row that alone holds only zeros)"));
Flag<bool> allowUnknown("allow-unknown", "Keep operators and opsets that the ONNX library does not know", false);
cl::list<std::string> dims("dim", cl::desc("Size of a symbolic dimension"), cl::value_desc("NAME=N"),
                           cl::cat(category));
Flag<int64_t> opset("opset", "Bring the model to this opset of ONNX first (from opset 13 on)", 0);
Flag<std::string> dtype("dtype", "f32 or f64: type of the whole model before any precision pass", "");
Flag<std::string> precision("precision", "f32, tf32, bf16, f16, fp8-delayed, fp8-current, fp8-row, fp8-block or mxfp8",
                            "f32");
Flag<int64_t> fp8History("fp8-history", "Steps that the amax histories of fp8-delayed cover", 16);
Flag<std::string> fp8Amax("fp8-amax", "max or most_recent: what of the history sets the scale", "max");
Flag<int64_t> fp8Margin("fp8-margin", "Powers of two that fp8-delayed stays below the largest number", 0);
Flag<std::string> fp8NaN("fp8-nan", "propagate or ignore: a NaN in the history keeps the scale, or counts as 0",
                         "propagate");
Flag<std::string> policy("policy", "cuda or cpu: PyTorch's lists; or a YAML file of rules that go before them", "",
                         cl::value_desc("cuda|cpu|FILE"));
Flag<std::string> lossScale("loss-scale", "none, dynamic or a number (default: dynamic for f16, else none)", "");
Flag<double> scaleInit("loss-scale-init", "Initial scale", 65536);
Flag<double> scaleGrowth("loss-scale-growth", "Factor after an interval of good steps", 2);
Flag<double> scaleBackoff("loss-scale-backoff", "Factor after a non-finite gradient", 0.5);
Flag<int64_t> scaleInterval("loss-scale-interval", "Good steps before the scale grows", 2000);
Flag<std::string> scaleMin("loss-scale-min", "The least that the scale backs off to (empty: no bound)", "");
Flag<std::string> scaleMax("loss-scale-max", "The most that the scale grows to (empty: no bound)", "");
Flag<int64_t> scaleHysteresis("loss-scale-hysteresis",
                              "Overflows, since the scale last could have grown, before it backs off", 1);
Flag<std::string> optimizer("optimizer", "adamw, adam, sgd, adagrad, rmsprop, nadam, radam or lion", "adamw");
tools::OptimizerFlags optimizerFlags(category);
Globs noDecay("no-decay", "Parameters without weight decay");
Globs lrScale("lr-scale", "Factor of the learning rate for parameters; the first match counts", "GLOB=FACTOR");
Globs decayScale("decay-scale", "Factor of the weight decay for parameters; the first match counts", "GLOB=FACTOR");
Flag<double> ema("ema", "Keep a moving average of the parameters with this decay, for instance 0.999", 0);
Flag<double> clipNorm("clip-grad-norm", "Largest global norm of the gradients", 0);
Flag<double> clipNormType("clip-grad-norm-type", "Order of that norm, from 1 to inf (the largest absolute value)", 2);
Flag<double> clipValue("clip-grad-value", "Largest absolute value of a gradient", 0);
Globs monitor("monitor", "Parameters whose gradients are measured together: norm, amax, overflow, underflow; each: one "
                         "by one");
Flag<int64_t> accumulate("accumulate", "Micro-batches a step, whose gradients are summed in fp32", 1);
Flag<std::string> normalize("normalize",
                            "tokens, samples or micro-batches: what the loss of a step is divided by (default: tokens "
                            "where the loss counts them, else samples)",
                            "");
Flag<bool> dataParallel("data-parallel",
                        "The step trains on any number of ranks: one all-reduce, one token count over all of them",
                        false);
Flag<std::string> memoryBudget("memory-budget",
                               "Most bytes of the arena: 2GiB, 500MB, 60% of the plan without "
                               "recomputing, or min",
                               "", cl::value_desc("SIZE|N%|min"));
Flag<std::string> checkpoint("checkpoint",
                             "What the backward computes again: auto (fits --memory-budget), none, every-N, "
                             "sqrt, selective, or all but what globs keep",
                             "", cl::value_desc("POLICY|GLOB,..."));
Flag<bool>
    offload("offload",
            "With --memory-budget: values may wait in the host's memory where that costs less than computing them "
            "again",
            false);
Flag<double> solveTime("solve-time",
                       "Seconds to look for what to compute again (default: a fixed effort, which gives the "
                       "same result on every machine)",
                       0);
Flag<int64_t> seed("seed", "Seed of the random key in the state", 0);
Flag<std::string> report("report", "What each pass decided, as JSON or as a page to read", "",
                         cl::value_desc("FILE.json|FILE.html"));
Flag<std::string> calibrateTo("calibrate",
                              "Measure how fast this machine is and write a cost profile; with MODEL also the "
                              "operators of OUT in their sizes (then --cost-profile is what to start from)",
                              "", cl::value_desc("FILE.json"));
Flag<std::string> costProfile("cost-profile", "Speed of the device that decisions about time are made for", "",
                              cl::value_desc("FILE.json"));
Flag<std::string> planOf("plan-of",
                         "What --emit=plan compiles: step (a step model as it is), gradient, forward (a model as it "
                         "is) or inference",
                         "step");
// LLVM's libraries register an option of this name.
cl::OptionCategory &freeThreads() {
  if (cl::Option *taken = cl::getRegisteredOptions().lookup("threads"))
    taken->removeArgument();
  return category;
}
Flag<std::string> planDevice("device",
                             "What --emit=plan compiles for: cpu, cuda, or check: cuda, to be run by recast-exec "
                             "--device=check",
                             "cpu", cl::value_desc("cpu|cuda|check"));
Flag<std::string> cudaArch("cuda-arch",
                           "What a CUDA plan is for; sm_89, sm_90 and sm_100 have more products of 8-bit floats each",
                           "sm_80", cl::value_desc("sm_NN"));
cl::opt<int> threads("threads", cl::desc("Threads that --emit=plan compiles for (default: all)"), cl::init(0),
                     cl::cat(freeThreads()));
Flag<bool> verifyEach("verify-each", "Verify after every pass, not only after the last", false);
Flag<std::string> stateIn("state-in", "Trained values (safetensors) to put into the model's initializers", "",
                          cl::value_desc("FILE"));
Flag<std::string> weights("weights", "parameters or ema: which of the values in --state-in", "parameters");

Flag<std::string> optimizerModel("optimizer-model",
                                 "Optimizer model of ONNX Runtime: its kind and numbers where no flag says otherwise",
                                 "", cl::value_desc("FILE"));

constexpr llvm::StringLiteral kTool = "recast-opt";
constexpr int64_t kLongestHistory = 1 << 20; // Every tensor that fp8 quantizes has one in the state.

std::vector<std::string> list(const cl::list<std::string> &flags) { return {flags.begin(), flags.end()}; }

// A bound that may be left empty. False where it is no number.
bool readBound(const std::string &text, double &bound) {
  return text.empty() || (!llvm::StringRef(text).getAsDouble(bound) && !std::isnan(bound));
}

// torch.amp.GradScaler asserts the same of growth and backoff.
std::string readLossScale(PipelineOptions &o) {
  double number;
  if (!lossScale.empty() && lossScale != "none" && lossScale != "dynamic" &&
      (llvm::StringRef(lossScale).getAsDouble(number) || !(number > 0) || !std::isfinite(number)))
    return "--loss-scale=" + lossScale + ": none, dynamic or a number above 0 is needed";
  if (!(scaleInit > 0) || !std::isfinite(scaleInit))
    return "--loss-scale-init: a number above 0 is needed";
  if (!(scaleGrowth > 1) || !std::isfinite(scaleGrowth))
    return "--loss-scale-growth: a factor above 1 is needed";
  if (!(scaleBackoff > 0 && scaleBackoff < 1))
    return "--loss-scale-backoff: a factor between 0 and 1 is needed";
  if (scaleInterval < 1)
    return "--loss-scale-interval: a number of steps from 1 on is needed";
  if (scaleHysteresis < 1)
    return "--loss-scale-hysteresis: a number of overflows from 1 on is needed";
  if (!readBound(scaleMin, o.scaleMin) || o.scaleMin < 0)
    return "--loss-scale-min=" + scaleMin + ": a number from 0 on is needed, or nothing";
  if (!readBound(scaleMax, o.scaleMax) || !(o.scaleMax > 0))
    return "--loss-scale-max=" + scaleMax + ": a number above 0 is needed, or nothing";
  if (o.scaleMin > o.scaleMax)
    return "--loss-scale-min=" + scaleMin + " is above --loss-scale-max=" + scaleMax;
  o.lossScale = lossScale;
  o.scaleInit = scaleInit;
  o.scaleGrowth = scaleGrowth;
  o.scaleBackoff = scaleBackoff;
  o.scaleInterval = scaleInterval;
  o.scaleHysteresis = scaleHysteresis;
  return "";
}

// Clipping, optimizer, groups of parameters.
std::string readUpdate(PipelineOptions &o) {
  o.optimizer = optimizer;
  if (std::string problem = optimizerFlags.read(optimizer, o.optimizerSettings); !problem.empty())
    return problem;
  o.noDecay = list(noDecay);
  o.lrScale = list(lrScale);
  o.decayScale = list(decayScale);
  for (auto &&[flag, entries] : {std::pair("lr-scale", &o.lrScale), std::pair("decay-scale", &o.decayScale)})
    if (auto rules = step::readFactors(flag, *entries); !rules)
      return "--" + llvm::toString(rules.takeError());
  auto given = [](const Flag<double> &flag) {
    return flag.getNumOccurrences() ? std::optional(double(flag)) : std::nullopt;
  };
  o.ema = given(ema);
  o.clipNorm = given(clipNorm);
  o.clipValue = given(clipValue);
  o.clipNormType = clipNormType;
  if (o.ema && !(*o.ema >= 0 && *o.ema <= 1))
    return "--ema: a decay from 0 to 1 is needed";
  for (const Flag<double> *flag : {&clipNorm, &clipValue})
    if (flag->getNumOccurrences() && !(*flag >= 0))
      return ("--" + flag->ArgStr + ": a number from 0 on is needed").str();
  if (!(o.clipNormType >= 1))
    return "--clip-grad-norm-type: an order from 1 on is needed, or inf";
  if (clipNormType.getNumOccurrences() && !o.clipNorm)
    return "--clip-grad-norm-type needs --clip-grad-norm=X";
  return "";
}

// What is computed again, and for which budget.
std::string readRecomputation(PipelineOptions &o) {
  o.memoryBudget = memoryBudget;
  o.checkpoint = checkpoint;
  if (auto budget = checkpoint::parseBudget(memoryBudget);
      !budget || (memoryBudget.getNumOccurrences() && memoryBudget.empty()))
    return "--memory-budget=" + (budget ? ": a size is needed" : llvm::toString(budget.takeError()));
  o.solveTime = solveTime;
  o.offload = offload;
  if (offload && memoryBudget.empty())
    return "--offload fits a budget: give one with --memory-budget=SIZE|N%|min";
  if ((memoryBudget.getNumOccurrences() || checkpoint.getNumOccurrences()) && o.emit != Emit::Step &&
      o.emit != Emit::Gradient)
    return "--memory-budget and --checkpoint shape a backward: --emit=step or gradient is needed";
  if (solveTime.getNumOccurrences() && !(solveTime > 0 && std::isfinite(solveTime)))
    return "--solve-time: a number of seconds above 0 is needed";
  if (!checkpoint.getNumOccurrences())
    return "";
  auto policy = checkpoint::parsePolicy(checkpoint);
  if (!policy)
    return "--checkpoint=" + llvm::toString(policy.takeError());
  if (policy->kind == checkpoint::Policy::Kind::Auto && memoryBudget.empty())
    return "--checkpoint=auto fits a budget: give one with --memory-budget=SIZE|N%|min";
  if (policy->kind != checkpoint::Policy::Kind::Auto && offload)
    return "--offload is chosen by --checkpoint=auto: leave the policy " + checkpoint + " out";
  return "";
}

// Fills the options; a message where a value is none of those that the contract names.
std::string readOptions(PipelineOptions &o) {
  std::string kind = emitKind;
  bool known = kind == "step" || kind == "gradient" || kind == "forward" || kind == "inference" ||
               kind == "training-info" || kind == "mlir" || kind == "plan";
  if (!known)
    return "--emit=" + kind + ": step, gradient, forward, inference, training-info, mlir or plan is needed";
  if (planOf != "step" && planOf != "gradient" && planOf != "forward" && planOf != "inference")
    return "--plan-of=" + planOf + ": step, gradient, forward or inference is needed";
  if (kind != "plan" && (planOf.getNumOccurrences() || threads.getNumOccurrences() || planDevice.getNumOccurrences()))
    return "--plan-of, --threads and --device are for --emit=plan";
  if (planDevice != "cpu" && planDevice != "cuda" && planDevice != "check")
    return "--device=" + planDevice + ": cpu, cuda or check is needed";
  if (cudaArch.getNumOccurrences() && (planDevice == "cpu" || !cudaArchitectureOf(cudaArch)))
    return "--cuda-arch=" + cudaArch + ": sm_80 or later is needed, with --device=cuda or check";
  if (threads.getNumOccurrences() && (threads < 1 || threads > 4096))
    return "--threads=" + std::to_string(threads) + ": a number from 1 to 4096 is needed";
  if (kind == "plan")
    kind = planOf;
  o.emit = kind == "gradient"    ? Emit::Gradient
           : kind == "forward"   ? Emit::Forward
           : kind == "inference" ? Emit::Inference
                                 : Emit::Step;
  bool isFp8 = precision == "fp8-delayed" || precision == "fp8-current" || precision == "fp8-row" ||
               precision == "fp8-block" || precision == "mxfp8";
  if (precision != "f32" && precision != "tf32" && precision != "bf16" && precision != "f16" && !isFp8)
    return "--precision=" + precision +
           ": this version has f32, tf32, bf16, f16, fp8-delayed, fp8-current, fp8-row, fp8-block and mxfp8";
  if (fp8History < 1 || fp8History > kLongestHistory)
    return "--fp8-history=" + std::to_string(fp8History) + ": a number of steps from 1 to " +
           std::to_string(kLongestHistory) + " is needed";
  if (fp8Margin < -127 || fp8Margin > 127) // beyond, 2^margin is no float
    return "--fp8-margin=" + std::to_string(fp8Margin) + ": a number from -127 to 127 is needed";
  if (fp8Amax != "max" && fp8Amax != "most_recent")
    return "--fp8-amax=" + fp8Amax + ": max or most_recent is needed";
  if (fp8NaN != "propagate" && fp8NaN != "ignore")
    return "--fp8-nan=" + fp8NaN + ": propagate or ignore is needed";
  if (!dtype.empty() && dtype != "f32" && dtype != "f64")
    return "--dtype=" + dtype + ": f32 or f64 is needed";
  if (std::string problem = readLossScale(o); !problem.empty())
    return problem;
  if (std::string problem = readUpdate(o); !problem.empty())
    return problem;
  if (weights != "parameters" && weights != "ema")
    return "--weights=" + weights + ": parameters or ema is needed";
  if (weights.getNumOccurrences() && stateIn.empty())
    return "--weights chooses among the values in --state-in=FILE: it needs that";
  if (accumulate < 1)
    return "--accumulate=" + std::to_string(accumulate) + ": a number of micro-batches from 1 up is needed";
  if (opset.getNumOccurrences() && opset < 1)
    return "--opset=" + std::to_string(opset) + ": a version of ONNX's operators is needed";
  if (!normalize.empty() && normalize != "tokens" && normalize != "samples" && normalize != "micro-batches")
    return "--normalize=" + normalize + ": tokens, samples or micro-batches is needed";
  o.loss = loss;
  o.train = list(train);
  o.freeze = list(freeze);
  o.dims = list(dims);
  o.opset = opset;
  o.paddingIndex = list(paddingIndex);
  o.dtype = dtype;
  o.precision = precision;
  o.policy = policy;
  o.fp8History = fp8History;
  o.fp8Amax = fp8Amax;
  o.fp8Margin = fp8Margin;
  o.fp8NaN = fp8NaN;
  o.monitor = list(monitor);
  o.accumulate = accumulate;
  o.dataParallel = dataParallel;
  o.normalize = normalize;
  o.seed = seed;
  o.costProfile = costProfile;
  return readRecomputation(o);
}

// What the optimizer model of ONNX Runtime says, where no flag does.
mlir::LogicalResult readOptimizerModel(mlir::MLIRContext &context, PipelineOptions &o) {
  auto module = io::loadModel(context, optimizerModel);
  if (!module)
    return mlir::failure();
  auto found = forms::readOrtOptimizer(*module);
  if (mlir::failed(found))
    return mlir::failure();
  if (!optimizer.getNumOccurrences())
    o.optimizer = found->kind;
  if (o.optimizer != found->kind)
    return mlir::success(); // its numbers are those of another update
  o.adamForm = found->adamForm;
  // What flags say comes last, and counts.
  std::vector<std::string> settings;
  auto set = [&](llvm::StringRef name, double value) {
    settings.push_back((name + "=" + llvm::Twine(llvm::formatv("{0:e17}", value).str())).str());
  };
  if (found->kind == "adamw") {
    set("beta1", found->beta1);
    set("beta2", found->beta2);
    set("eps", found->eps);
    set("weight-decay", found->weightDecay);
  }
  o.optimizerSettings.clear();
  if (std::string problem = optimizerFlags.read(o.optimizer, o.optimizerSettings); !problem.empty()) {
    tools::fail(kTool, problem);
    return mlir::failure();
  }
  o.optimizerSettings.insert(o.optimizerSettings.begin(), settings.begin(), settings.end());
  return mlir::success();
}

// Runs the passes; 0 or the exit code. The pass manager's reports (--mlir-timing) print when it goes.
int rewrite(mlir::ModuleOp module, PipelineOptions options, const mlir::PassPipelineCLParser &pipeline) {
  mlir::PassManager passes(module.getContext(), mlir::ModuleOp::getOperationName());
  if (mlir::failed(mlir::applyPassManagerCLOptions(passes)))
    return tools::kUsage;
  mlir::applyDefaultTimingPassManagerCLOptions(passes);
  passes.enableVerifier(verifyEach);
  if (pipeline.hasAnyOccurrences()) {
    if (mlir::failed(pipeline.addToPipeline(passes, [](const llvm::Twine &text) {
          tools::fail(kTool, text);
          return mlir::failure();
        })))
      return tools::kUsage;
  } else {
    options.measureMemory = tools::measureMemory;
    buildPipeline(passes, options);
  }
  if (mlir::failed(passes.run(module)))
    return tools::kFailed;
  return mlir::failed(mlir::verify(module)) ? tools::kFailed : tools::kDone;
}

llvm::Error writeText(const std::string &text, const std::string &path) {
  auto out = io::OutputFile::create(path);
  if (!out)
    return out.takeError();
  if (auto error = (*out)->write(text))
    return error;
  return (*out)->commit();
}

// Writes what the passes decided and takes it out of the module.
llvm::Error writeReport(mlir::ModuleOp module) {
  llvm::json::Object facts = takeReport(module);
  if (report.empty())
    return llvm::Error::success();
  if (llvm::StringRef(report).ends_with(".html"))
    return writeText(tools::factsPage(facts, "What recast-opt decided about " + input), report);
  std::string text;
  llvm::raw_string_ostream(text) << llvm::formatv("{0:2}", llvm::json::Value(std::move(facts))) << '\n';
  return writeText(text, report);
}

// Without `module` the machine alone is measured. 0 or the exit code.
int writeProfile(mlir::MLIRContext &context, mlir::ModuleOp module, const std::optional<cost::Profile> &base) {
  auto profile = tools::calibrate(context, module, base ? &*base : nullptr);
  if (!profile)
    return tools::fail(kTool, llvm::toString(profile.takeError()));
  if (auto error = writeText(cost::toJson(*profile), calibrateTo))
    return tools::fail(kTool, llvm::toString(std::move(error)));
  return tools::kDone;
}

} // namespace

int main(int argc, char **argv) {
  registerRecastPasses();
  mlir::registerCSEPass();
  mlir::registerCanonicalizerPass();
  mlir::registerPassManagerCLOptions();
  mlir::registerDefaultTimingManagerCLOptions();
  mlir::registerAsmPrinterCLOptions();
  mlir::PassPipelineCLParser pipeline("run-pass", "Passes to run, in order, instead of those that --emit asks for");
  if (!tools::parseCommandLine(
          argc, argv, category, "Rewrites an ONNX model: builds the training step, its gradients, casts, loss scale",
          "\nEXAMPLE:\n  recast-opt model.onnx --precision=bf16 --clip-grad-norm=1 -o step.onnx\n"))
    return tools::kUsage;
  PipelineOptions options;
  if (std::string problem = readOptions(options); !problem.empty())
    return tools::fail(kTool, problem, tools::kUsage);
  if (input.empty() && (calibrateTo.empty() || !output.empty()))
    return tools::fail(kTool, "MODEL is missing: see --help", tools::kUsage);
  if (output.empty() && calibrateTo.empty())
    return tools::fail(kTool, "-o OUT is missing: where does the result go?", tools::kUsage);
  std::optional<cost::Profile> profile;
  if (!costProfile.empty()) {
    auto loaded = cost::loadProfile(costProfile);
    if (!loaded)
      return tools::fail(kTool, "--cost-profile=" + llvm::toString(loaded.takeError()));
    profile = std::move(*loaded);
  }

  mlir::DialectRegistry registry;
  io::registerDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  context.disableMultithreading(); // The constructor alone leaves the locks of types and attributes on.
  tools::DiagnosticPrinter printer(context, kTool);
  if (input.empty())
    return writeProfile(context, nullptr, profile);
  std::vector<std::shared_ptr<io::MappedFile>> files;
  auto handling = options.emit == Emit::Step      ? io::TrainingInfo::Join
                  : options.emit == Emit::Forward ? io::TrainingInfo::Keep
                                                  : io::TrainingInfo::Drop;
  auto module = io::loadModel(context, input, {allowUnknown, handling}, &files);
  if (!module)
    return tools::kFailed;
  if (int64_t own = onnx_ir::opsetVersion(onnx_ir::mainGraph(*module), ""); opset && opset < own)
    return tools::fail(kTool, input + ": imports opset " + std::to_string(own) + ", and --opset=" +
                                  std::to_string(opset) + " is an earlier one: models are brought to later ones only");
  if (!optimizerModel.empty() && mlir::failed(readOptimizerModel(context, options)))
    return tools::kFailed;
  if (!stateIn.empty())
    if (mlir::failed(tools::applyState(*module, stateIn, weights == "ema")))
      return tools::kFailed;

  if (options.emit == Emit::Step && !onnx_ir::getMetadata(*module, "recast.state").empty()) {
    options.isStep = true;
    for (const auto &[name, flag] : cl::getRegisteredOptions())
      if (flag->getNumOccurrences() && llvm::is_contained(flag->Categories, &category) &&
          !llvm::is_contained({"o", "emit", "dim", "allow-unknown", "state-in", "verify-each", "memory-budget",
                               "checkpoint", "offload", "solve-time", "threads", "plan-of", "device", "cuda-arch",
                               "report", "calibrate", "cost-profile"},
                              name))
        return tools::fail(kTool, input + ": is a training step already, which --" + name +
                                      " does not change; give the forward graph instead");
  }
  if (int code = rewrite(*module, options, pipeline))
    return code;
  if (auto error = writeReport(*module))
    return tools::fail(kTool, llvm::toString(std::move(error)));
  if (!calibrateTo.empty())
    if (int code = writeProfile(context, *module, profile))
      return code;
  if (output.empty())
    tools::finish(tools::kDone);
  std::string target = output;
  if (emitKind == "mlir" && !llvm::StringRef(target).ends_with(".mlir") && target != "-")
    return tools::fail(kTool, "--emit=mlir writes text: OUT must end in .mlir", tools::kUsage);
  if (auto error =
          emitKind == "mlir" ? io::saveText(*module, target)
          : emitKind == "plan"
              ? tools::emitPlan(*module, input, target, files, threads, planDevice, cudaArchitectureOf(cudaArch))
              : io::saveModel(*module, target, input, files.front().get(), emitKind == "training-info"))
    return tools::fail(kTool, llvm::toString(std::move(error)));
  // The output is complete. Taking the graph apart again would cost a sixth of the run.
  tools::finish(tools::kDone);
}
