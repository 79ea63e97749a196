#include "tools/recast-run/Flags.h"
#include <llvm/ADT/Twine.h>
#include <llvm/Support/raw_ostream.h>

namespace recast::tools {

namespace {

namespace cl = llvm::cl;

constexpr const char *kOverview = "Trains a step model, or runs any other model: inputs in, outputs out.\n\n"
                                  "Exit status: 0 done; 1 the model, the data or the run is wrong; 2 wrong usage.\n";

constexpr const char *kExample = R"(
EXAMPLE:
  Train for three epochs, watch the loss, keep the result:
    recast-run step.onnx --data=train.safetensors --batch-size=32 --epochs=3 --shuffle \
      --metrics=metrics.jsonl --state-out=trained.safetensors
)";

/// LLVM's libraries register options of their own, one of which has a name that we need.
cl::OptionCategory &freeNames(cl::OptionCategory &category) {
  if (cl::Option *taken = cl::getRegisteredOptions().lookup("threads"))
    taken->removeArgument();
  return category;
}

} // namespace

Flags::Flags()
    : modelArg(cl::Positional, cl::Required, cl::desc("MODEL (.onnx, .onnxtxt or .mlir; - is standard input)"),
               cl::value_desc("MODEL"), cl::cat(freeNames(category))),
      data("data", cl::value_desc("file"), cl::cat(category),
           cl::desc("Tensors named as the graph's inputs: .safetensors, .npz, .npy, a folder of .npy, or a .bin token "
                    "stream (16-bit)")),
      stateIn("state-in", cl::value_desc("file"), cl::desc("Start from this state (safetensors)"), cl::cat(category)),
      stateOut("state-out", cl::value_desc("file"), cl::desc("Write the state at the end (safetensors)"),
               cl::cat(category)),
      checkpointDir("checkpoint-dir", cl::value_desc("folder"), cl::desc("Where checkpoints are"), cl::cat(category)),
      outputs("outputs", cl::value_desc("file"), cl::cat(category),
              cl::desc("Write every graph output of every step, stacked on a new axis 0 (safetensors)")),
      metrics("metrics", cl::value_desc("file.jsonl|folder"), cl::cat(category),
              cl::desc("Log a JSON line a step; a folder gets TensorBoard events")),
      schedule(
          "lr-schedule", cl::value_desc("constant|linear|cosine|file"), cl::init("constant"), cl::cat(category),
          cl::desc(
              "How the learning rate changes with the optimizer steps, skipped ones included; a file has a number for "
              "every step")),
      deviceArg("device", cl::value_desc("cpu|cuda[:N]"), cl::init("cpu"), cl::desc("Where to run"), cl::cat(category)),
      profile("profile", cl::value_desc("file.json"), cl::desc("Write a Chrome trace of the kernels"),
              cl::cat(category)),
      kernels("kernels", cl::value_desc("generated|library|reference"), cl::cat(category),
              cl::desc("generated: generate code for small operators too; library: generate none; reference: the plain "
                       "evaluator only: slow, the oracle")),
      layout("data-layout", cl::desc("What the tensors of --data are"), cl::init(DataLayout::Samples),
             cl::values(clEnumValN(DataLayout::Samples, "samples", "axis 0 indexes samples (default)"),
                        clEnumValN(DataLayout::Batches, "batches", "axis 0 indexes ready batches"),
                        clEnumValN(DataLayout::Single, "single", "they are one batch, used at every step")),
             cl::cat(category)),
      batchSize("batch-size", cl::value_desc("N"), cl::cat(category),
                cl::desc("Samples a batch (default: the model's, else 32)")),
      epochs("epochs", cl::value_desc("N"), cl::desc("Times through the data (default 1)"), cl::cat(category)),
      steps("steps", cl::value_desc("N"), cl::cat(category),
            cl::desc("Steps to run; the data starts again where it ends")),
      checkpointEvery("checkpoint-every", cl::value_desc("N"), cl::desc("Steps between checkpoints"),
                      cl::cat(category)),
      warmupSteps("warmup-steps", cl::value_desc("N"), cl::cat(category),
                  cl::desc("Optimizer steps over which the learning rate rises from 0")),
      threadsArg("threads", cl::value_desc("N"), cl::desc("Threads to use (default: all)"), cl::cat(category)),
      seed("seed", cl::value_desc("N"), cl::desc("Of --shuffle (default 0)"), cl::cat(category)),
      shuffle("shuffle", cl::desc("A new order of the samples every epoch"), cl::cat(category)),
      dropLast("drop-last", cl::desc("Leave out an epoch's last batch if it is smaller"), cl::cat(category)),
      findNonFinite(
          "find-nonfinite", cl::cat(category),
          cl::desc("In each step that has one, name the node that first made a value infinite or NaN (slow)")),
      resume("resume", cl::desc("Go on from the latest checkpoint, bit for bit"), cl::cat(category)),
      explainArg("explain", cl::cat(category),
                 cl::desc("Print the plan (every step, its kernel, its buffers) and run nothing")),
      minLr("min-lr", cl::value_desc("rate"), cl::desc("Where linear and cosine end (default 0)"), cl::cat(category)),
      dimArgs("dim", cl::value_desc("NAME=N"), cl::desc("Bind a symbolic dimension (repeatable)"), cl::cat(category)),
      example(kExample) {}

bool Flags::parse(int argc, char **argv) {
  cl::HideUnrelatedOptions(category);
  if (!cl::ParseCommandLineOptions(argc, argv, kOverview, &llvm::errs()))
    return false;
  model = modelArg;
  device = deviceArg;
  explain = explainArg;
  session.stateIn = stateIn;
  session.stateOut = stateOut;
  session.outputs = outputs;
  session.metrics = metrics;
  session.profile = profile;
  session.checkpointDir = checkpointDir;
  session.resume = resume;
  session.findNonFinite = findNonFinite;
  session.schedule = {schedule, warmupSteps, minLr};
  if (data.getNumOccurrences())
    session.data = DataOptions{data, layout, batchSize, shuffle, seed, dropLast};
  return readDims() && readNumbers() && readChoices();
}

bool Flags::readDims() {
  for (const std::string &text : dimArgs) {
    auto [name, number] = llvm::StringRef(text).rsplit('=');
    int64_t value = 0;
    if (name.empty() || number.getAsInteger(10, value) || value < 0)
      return wrong("--dim=" + text + " is not of the form --dim=NAME=N");
    dims[name.str()] = value;
  }
  return true;
}

bool Flags::readNumbers() {
  for (const Opt<int64_t> *flag : {&batchSize, &epochs, &steps, &checkpointEvery, &warmupSteps, &threadsArg}) {
    int64_t least = flag == &steps || flag == &warmupSteps ? 0 : 1;
    if (flag->getNumOccurrences() && *flag < least)
      return wrong("--" + flag->ArgStr + " must be at least " + llvm::Twine(least));
  }
  if (epochs.getNumOccurrences())
    session.epochs = epochs;
  if (steps.getNumOccurrences())
    session.steps = steps;
  session.checkpointEvery = checkpointEvery;
  threads = static_cast<int>(std::min<int64_t>(threadsArg, 4096));
  return true;
}

bool Flags::readChoices() {
  if (kernels.getNumOccurrences() && kernels != "reference" && kernels != "library" && kernels != "generated")
    return wrong("--kernels takes 'generated', 'library' or 'reference'");
  // A region would hide the node that a search is for.
  regions = kernels != "reference" && kernels != "library" && !findNonFinite;
  if (kernels == "generated")
    regionElems = 0;
  session.referenceOnly = kernels == "reference";
  llvm::StringRef name = device;
  unsigned index = 0;
  bool cuda = name == "cuda" || (name.consume_front("cuda:") && !name.getAsInteger(10, index));
  if (device != "cpu" && !cuda)
    return wrong("--device takes 'cpu', 'cuda' or 'cuda:N'");
  if (!session.data)
    for (const cl::Option *flag :
         std::initializer_list<const cl::Option *>{&layout, &batchSize, &shuffle, &dropLast, &epochs})
      if (flag->getNumOccurrences())
        return wrong("--" + flag->ArgStr + " needs --data");
  if (minLr.getNumOccurrences() && !(minLr >= 0))
    return wrong("--min-lr must be at least 0");
  if (minLr.getNumOccurrences() && schedule != "linear" && schedule != "cosine")
    return wrong("--min-lr is where --lr-schedule=linear and cosine end: it needs one of them");
  if ((checkpointEvery || resume) && checkpointDir.empty())
    return wrong("--checkpoint-every and --resume need --checkpoint-dir");
  return true;
}

bool Flags::wrong(const llvm::Twine &message) const {
  llvm::errs() << "recast-run: " << message << "; see --help\n";
  return false;
}

} // namespace recast::tools
