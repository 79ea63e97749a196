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
#include "passes/Passes.h"
#include "passes/Pipelines.h"
#include "passes/forms/OrtOptimizer.h"
#include "tools/common/Diagnostics.h"
#include "tools/recast-opt/ApplyState.h"

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
  Globs(llvm::StringRef name, llvm::StringRef text)
      : cl::list<std::string>(name, cl::CommaSeparated, cl::desc(text), cl::value_desc("GLOB,..."), cl::cat(category)) {
  }
};

cl::opt<std::string> input(cl::Positional, cl::Required, cl::desc("MODEL (.onnx, .onnxtxt, .mlir, - for stdin)"),
                           cl::cat(category));
Flag<std::string> output("o", "Where the result goes (- for stdout)", "", cl::value_desc("OUT"), cl::Required);
cl::opt<std::string> emitKind("emit",
                              cl::desc("step, gradient, forward, inference, training-info or mlir: what OUT holds"),
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
Flag<std::string> dtype("dtype", "f32 or f64: type of the whole model before any precision pass", "");
Flag<std::string> precision("precision", "f32, bf16 or f16", "f32");
Flag<std::string> policy("policy", "YAML rules that go before the preset's", "", cl::value_desc("FILE"));
Flag<std::string> lossScale("loss-scale", "none, dynamic or a number (default: dynamic for f16, else none)", "");
Flag<double> scaleInit("loss-scale-init", "Initial scale", 65536);
Flag<double> scaleGrowth("loss-scale-growth", "Factor after an interval of good steps", 2);
Flag<double> scaleBackoff("loss-scale-backoff", "Factor after a non-finite gradient", 0.5);
Flag<int64_t> scaleInterval("loss-scale-interval", "Good steps before the scale grows", 2000);
Flag<double> scaleMin("loss-scale-min", "Lower bound of the scale", 0);
Flag<double> scaleMax("loss-scale-max", "Upper bound of the scale", 3.402823466e+38);
Flag<std::string> optimizer("optimizer", "adamw, adam or sgd", "adamw");
Flag<double> lr("lr", "Learning rate", -1);
cl::list<double> betas("betas", cl::CommaSeparated, cl::desc("Decays of the moments (default 0.9,0.999)"),
                       cl::cat(category));
Flag<double> eps("eps", "Added to the denominator of the update", 1e-8);
Flag<double> weightDecay("weight-decay", "Weight decay (default: 0.01 for adamw, else 0)", -1);
Flag<double> momentum("momentum", "Momentum of sgd", 0);
Flag<bool> nesterov("nesterov", "Nesterov momentum of sgd", false);
Globs noDecay("no-decay", "Parameters without weight decay");
Flag<double> clipNorm("clip-grad-norm", "Largest global 2-norm of the gradients", 0);
Flag<double> clipValue("clip-grad-value", "Largest absolute value of a gradient", 0);
Globs monitor("monitor", "Parameters whose gradients are measured together: norm, amax, overflow, underflow; each: one "
                         "by one");
Flag<int64_t> accumulate("accumulate", "Micro-batches a step, whose gradients are summed in fp32", 1);
Flag<std::string> normalize("normalize",
                            "tokens, samples or micro-batches: what the loss of a step is divided by (default: tokens "
                            "where the loss counts them, else samples)",
                            "");
Flag<int64_t> seed("seed", "Seed of the random key in the state", 0);
Flag<bool> verifyEach("verify-each", "Verify after every pass, not only after the last", false);
Flag<std::string> stateIn("state-in", "Trained values (safetensors) to put into the model's initializers", "",
                          cl::value_desc("FILE"));

Flag<std::string> optimizerModel("optimizer-model",
                                 "Optimizer model of ONNX Runtime: its kind and numbers where no flag says otherwise",
                                 "", cl::value_desc("FILE"));

constexpr llvm::StringLiteral kTool = "recast-opt";

// Fills the options; a message where a value is none of those that the contract names.
std::string readOptions(PipelineOptions &o) {
  std::string kind = emitKind;
  bool known = kind == "step" || kind == "gradient" || kind == "forward" || kind == "inference" ||
               kind == "training-info" || kind == "mlir";
  if (!known)
    return "--emit=" + kind + ": step, gradient, forward, inference, training-info or mlir is needed";
  o.emit = kind == "gradient"    ? Emit::Gradient
           : kind == "forward"   ? Emit::Forward
           : kind == "inference" ? Emit::Inference
                                 : Emit::Step;
  if (precision != "f32" && precision != "bf16" && precision != "f16")
    return "--precision=" + precision + ": this version has f32, bf16 and f16";
  if (!dtype.empty() && dtype != "f32" && dtype != "f64")
    return "--dtype=" + dtype + ": f32 or f64 is needed";
  double number;
  if (!lossScale.empty() && lossScale != "none" && lossScale != "dynamic" &&
      (llvm::StringRef(lossScale).getAsDouble(number) || !(number > 0)))
    return "--loss-scale=" + lossScale + ": none, dynamic or a number above 0 is needed";
  if (optimizer != "adamw" && optimizer != "adam" && optimizer != "sgd")
    return "--optimizer=" + optimizer + ": this version has adamw, adam and sgd";
  if (accumulate < 1)
    return "--accumulate=" + std::to_string(accumulate) + ": a number of micro-batches from 1 up is needed";
  if (!normalize.empty() && normalize != "tokens" && normalize != "samples" && normalize != "micro-batches")
    return "--normalize=" + normalize + ": tokens, samples or micro-batches is needed";
  if (!betas.empty() && betas.size() != 2)
    return "--betas: two numbers are needed, for instance --betas=0.9,0.999";
  auto list = [](const cl::list<std::string> &flags) { return std::vector<std::string>(flags.begin(), flags.end()); };
  o.loss = loss;
  o.train = list(train);
  o.freeze = list(freeze);
  o.dims = list(dims);
  o.paddingIndex = list(paddingIndex);
  o.dtype = dtype;
  o.precision = precision;
  o.policy = policy;
  o.lossScale = lossScale;
  o.scaleInit = scaleInit;
  o.scaleGrowth = scaleGrowth;
  o.scaleBackoff = scaleBackoff;
  o.scaleInterval = scaleInterval;
  o.scaleMin = scaleMin;
  o.scaleMax = scaleMax;
  o.optimizer = optimizer;
  o.lr = lr >= 0 ? lr : 1e-3; // torch.optim: AdamW, Adam and SGD all default to 1e-3
  o.beta1 = betas.empty() ? 0.9 : betas[0];
  o.beta2 = betas.empty() ? 0.999 : betas[1];
  o.eps = eps;
  o.weightDecay = weightDecay >= 0 ? weightDecay : optimizer == "adamw" ? 0.01 : 0;
  o.momentum = momentum;
  o.nesterov = nesterov;
  o.noDecay = list(noDecay);
  o.clipNorm = clipNorm;
  o.clipValue = clipValue;
  o.monitor = list(monitor);
  o.accumulate = accumulate;
  o.normalize = normalize;
  o.seed = seed;
  return "";
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
  if (betas.empty()) {
    o.beta1 = found->beta1;
    o.beta2 = found->beta2;
  }
  if (!eps.getNumOccurrences())
    o.eps = found->eps;
  if (weightDecay < 0)
    o.weightDecay = found->weightDecay;
  return mlir::success();
}

// Runs the passes; 0 or the exit code. The pass manager's reports (--mlir-timing) print when it goes.
int rewrite(mlir::ModuleOp module, const PipelineOptions &options, const mlir::PassPipelineCLParser &pipeline) {
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
    buildPipeline(passes, options);
  }
  if (mlir::failed(passes.run(module)))
    return tools::kFailed;
  return mlir::failed(mlir::verify(module)) ? tools::kFailed : tools::kDone;
}

} // namespace

int main(int argc, char **argv) {
  registerRecastPasses();
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

  mlir::DialectRegistry registry;
  io::registerDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  tools::DiagnosticPrinter printer(context, kTool);
  std::shared_ptr<io::MappedFile> source;
  auto handling = options.emit == Emit::Step      ? io::TrainingInfo::Join
                  : options.emit == Emit::Forward ? io::TrainingInfo::Keep
                                                  : io::TrainingInfo::Drop;
  auto module = io::loadModel(context, input, {allowUnknown, handling}, &source);
  if (!module)
    return tools::kFailed;
  if (!optimizerModel.empty() && mlir::failed(readOptimizerModel(context, options)))
    return tools::kFailed;
  if (!stateIn.empty())
    if (mlir::failed(tools::applyState(*module, stateIn)))
      return tools::kFailed;

  if (options.emit == Emit::Step && !onnx_ir::getMetadata(*module, "recast.state").empty()) {
    options.isStep = true;
    for (const auto &[name, flag] : cl::getRegisteredOptions())
      if (flag->getNumOccurrences() && llvm::is_contained(flag->Categories, &category) &&
          !llvm::is_contained({"o", "emit", "dim", "allow-unknown", "state-in", "verify-each"}, name))
        return tools::fail(kTool, input + ": is a training step already, which --" + name +
                                      " does not change; give the forward graph instead");
  }
  if (int code = rewrite(*module, options, pipeline))
    return code;
  std::string target = output;
  if (emitKind == "mlir" && !llvm::StringRef(target).ends_with(".mlir") && target != "-")
    return tools::fail(kTool, "--emit=mlir writes text: OUT must end in .mlir", tools::kUsage);
  if (auto error = emitKind == "mlir"
                       ? io::saveText(*module, target)
                       : io::saveModel(*module, target, input, source.get(), emitKind == "training-info"))
    return tools::fail(kTool, llvm::toString(std::move(error)));
  // The output is complete. Taking the graph apart again would cost a sixth of the run.
  tools::finish(tools::kDone);
}
