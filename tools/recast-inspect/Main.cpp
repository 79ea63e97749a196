// recast-inspect: explains a model. Flags and options only.
#include "ir/io/Load.h"
#include "ir/io/MappedFile.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Passes.h"
#include "tools/common/Diagnostics.h"
#include "tools/common/FactsPage.h"
#include "tools/recast-inspect/Inspect.h"

using namespace recast;
namespace cl = llvm::cl;

namespace {

cl::OptionCategory category("Options of recast-inspect");
cl::opt<std::string> input(cl::Positional, cl::Required, cl::desc("MODEL (.onnx, .onnxtxt, .mlir, - for stdin)"),
                           cl::cat(category));
cl::opt<bool> order("order", cl::desc("The chain that each gradient takes to its update"), cl::cat(category));
cl::opt<bool> verifyRules("verify",
                          cl::desc("Check the rules of mixed precision and accumulation on any training graph"),
                          cl::cat(category));
cl::opt<bool> trainable("trainable", cl::desc("What would be trained, and why"), cl::cat(category));
cl::opt<std::string> precision("precision", cl::ValueOptional, cl::value_desc("f16|bf16"), cl::cat(category),
                               cl::desc("Each node's type, class and rule (default: the low type that the file has)"));
cl::opt<bool> casts("casts", cl::desc("Each cast: value, types, bytes, what it is for"), cl::cat(category));
cl::opt<bool> costs("cost", cl::desc("Each operator's arithmetic, bytes and estimated time"), cl::cat(category));
cl::opt<bool> memory("memory", cl::desc("What takes memory in a run, over time, and who holds the peak"),
                     cl::cat(category));
cl::opt<bool> checkpoints("checkpoints", cl::desc("What runs again, and what less memory would cost"),
                          cl::cat(category));
cl::opt<int> budgets("budgets", cl::desc("With --checkpoints: how many amounts of memory are tried"), cl::init(16),
                     cl::value_desc("N"), cl::cat(category));
cl::opt<std::string> html("html", cl::desc("Write a page to read as well; of --memory with a picture of the arena"),
                          cl::value_desc("FILE"), cl::cat(category));
cl::opt<std::string> diffWith("diff", cl::desc("What MODEL2 has instead of what MODEL has"), cl::value_desc("MODEL2"),
                              cl::cat(category));
cl::opt<std::string> costProfile("cost-profile", cl::value_desc("FILE.json"), cl::cat(category),
                                 cl::desc("The device for estimated times, as recast-opt --calibrate measured it"));
cl::opt<std::string> nodeName("node", cl::desc("One node: operator, origin, types, rule, neighbours"),
                              cl::value_desc("NAME"), cl::cat(category));
cl::opt<std::string> policy("policy", cl::desc("As for recast-opt"), cl::value_desc("cuda|cpu|FILE"),
                            cl::cat(category));
cl::opt<std::string> loss("loss", cl::desc("Output that is the loss"), cl::value_desc("NAME"), cl::cat(category));
cl::list<std::string> trainGlobs("train", cl::CommaSeparated, cl::desc("As for recast-opt"), cl::cat(category));
cl::list<std::string> freezeGlobs("freeze", cl::CommaSeparated, cl::desc("As for recast-opt"), cl::cat(category));
cl::list<std::string> dims("dim", cl::desc("Size of a symbolic dimension"), cl::value_desc("NAME=N"),
                           cl::cat(category));
cl::opt<bool> allowUnknown("allow-unknown", cl::desc("As for recast-opt"), cl::cat(category));
cl::opt<std::string> json("json", cl::desc("Write the facts as JSON (- for stdout) instead of text"),
                          cl::value_desc("FILE"), cl::cat(category));

constexpr llvm::StringLiteral kTool = "recast-inspect";

mlir::LogicalResult bindDimensions(mlir::ModuleOp module) {
  if (dims.empty())
    return mlir::success();
  mlir::PassManager passes(module.getContext(), mlir::ModuleOp::getOperationName());
  BindDimensionsOptions options;
  options.dims.assign(dims.begin(), dims.end());
  passes.addPass(createBindDimensions(options));
  return passes.run(module);
}

int writeFile(const std::string &path, llvm::StringRef text) {
  auto out = io::OutputFile::create(path);
  if (!out)
    return tools::fail(kTool, llvm::toString(out.takeError()));
  if (auto error = (*out)->write(llvm::ArrayRef(text.data(), text.size())))
    return tools::fail(kTool, llvm::toString(std::move(error)));
  if (auto error = (*out)->commit())
    return tools::fail(kTool, llvm::toString(std::move(error)));
  return tools::kDone;
}

int write(const llvm::json::Object &facts, void (*print)(const llvm::json::Object &, llvm::raw_ostream &)) {
  if (!html.empty()) {
    std::string title = input + (diffWith.empty() ? "" : " and " + diffWith);
    if (int code = writeFile(html, memory ? inspect::memoryPage(facts, title) : tools::factsPage(facts, title)))
      return code;
  }
  if (json.empty()) {
    print(facts, llvm::outs());
    return tools::kDone;
  }
  std::string text;
  llvm::raw_string_ostream(text) << llvm::formatv("{0:2}", llvm::json::Value(llvm::json::Object(facts))) << '\n';
  return writeFile(json, text);
}

} // namespace

int main(int argc, char **argv) {
  if (!tools::parseCommandLine(argc, argv, category,
                               "Explains an ONNX model: what it holds, what would be trained, in which order",
                               "\nEXAMPLE:\n  recast-inspect step.onnx --order\n"))
    return tools::kUsage;
  bool explainsPrecision = precision.getNumOccurrences() && nodeName.empty();
  if (order + trainable + verifyRules + explainsPrecision + casts + costs + memory + checkpoints + !nodeName.empty() +
          !diffWith.empty() >
      1)
    return tools::fail(
        kTool,
        "--order, --trainable, --verify, --precision, --casts, --cost, --memory, --checkpoints, --node and --diff "
        "answer different questions: give one of them",
        tools::kUsage);
  if (budgets < 2)
    return tools::fail(kTool, "--budgets=N: a number from 2 on is needed", tools::kUsage);
  if (!precision.empty() && precision != "f16" && precision != "bf16")
    return tools::fail(kTool, "--precision=" + precision + ": f16 or bf16 is needed", tools::kUsage);
  mlir::DialectRegistry registry;
  io::registerDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  context.disableMultithreading(); // The constructor alone leaves the locks of types and attributes on.
  tools::DiagnosticPrinter printer(context, kTool);
  auto module = io::loadModel(context, input, {allowUnknown, io::TrainingInfo::Join});
  if (!module || mlir::failed(bindDimensions(*module)))
    return tools::kFailed;
  if (trainable) {
    mlir::PassManager forms(&context); // what recast-opt would see, in a training graph of another tool too
    forms.addPass(createReadOrtTraining());
    PrepareTrainingOptions prepare;
    prepare.loss = loss;
    forms.addPass(createPrepareTraining(prepare));
    if (mlir::failed(forms.run(*module)))
      return tools::kFailed;
    auto facts = inspect::explainTrainable(
        *module, loss, {{trainGlobs.begin(), trainGlobs.end()}, {freezeGlobs.begin(), freezeGlobs.end()}});
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printTrainable);
  }
  if (verifyRules) {
    llvm::json::Object facts = inspect::verify(*module);
    for (const llvm::json::Value &value : *facts.getArray("findings")) {
      const llvm::json::Object &finding = *value.getAsObject();
      tools::fail(kTool, *finding.getString("rule") + ": " + *finding.getString("text"));
      for (const llvm::json::Value &link : *finding.getArray("chain"))
        llvm::errs() << "  -> " << *link.getAsString() << '\n';
    }
    bool isClean = facts.getArray("findings")->empty();
    int code = isClean || !json.empty() ? write(facts, inspect::printVerified) : tools::kDone;
    return code ? code : isClean ? tools::kDone : tools::kFailed;
  }
  if (order) {
    auto facts = inspect::explainOrder(*module);
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printOrder);
  }
  if (explainsPrecision) {
    auto facts = inspect::explainPrecision(*module, precision, policy);
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printPrecision);
  }
  if (casts) {
    auto facts = inspect::explainCasts(*module);
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printCasts);
  }
  if (memory) {
    auto facts = inspect::explainMemory(*module);
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printMemory);
  }
  if (!diffWith.empty()) {
    auto other = io::loadModel(context, diffWith, {allowUnknown, io::TrainingInfo::Join});
    if (!other || mlir::failed(bindDimensions(*other)))
      return tools::kFailed;
    return write(inspect::diff(*module, *other), inspect::printDiff);
  }
  if (!nodeName.empty()) {
    auto facts = inspect::explainNode(*module, nodeName, precision, policy);
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printNode);
  }
  llvm::Expected<cost::Profile> profile =
      costProfile.empty() ? llvm::Expected<cost::Profile>(cost::defaultProfile()) : cost::loadProfile(costProfile);
  if (!profile)
    return tools::fail(kTool, "--cost-profile=" + llvm::toString(profile.takeError()));
  if (checkpoints) {
    auto facts = inspect::explainCheckpoints(*module, budgets, *profile);
    return mlir::failed(facts) ? tools::kFailed : write(*facts, inspect::printCheckpoints);
  }
  return costs ? write(inspect::explainCost(*module, *profile), inspect::printCost)
               : write(inspect::summarize(*module, *profile), inspect::printSummary);
}
