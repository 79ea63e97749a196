// recast-run: compiles a model and runs it in one process.
#include "runtime/compile/Compile.h"
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/plan/PlanFile.h"
#include "tools/run/RunSession.h"
#include <charconv>

using namespace recast;

namespace {

using Dims = std::map<std::string, int64_t>;

const tools::ToolText kText = {"recast-run", "Trains a step model, or runs any other model: inputs in, outputs out.",
                               "MODEL", "The model: .onnx, .onnxtxt, .mlir or a compiled plan; - is standard input",
                               R"(  Train for three epochs, watch the loss, keep the result:
    recast-run step.onnx --data=train.safetensors --batch-size=32 --epochs=3 --shuffle \
      --metrics=metrics.jsonl --state-out=trained.safetensors)"};

/// False where a text is not of the form NAME=N, which then is in `dims` alone.
bool readDims(const std::vector<std::string> &texts, Dims &dims, std::string &wrong) {
  for (const std::string &text : texts) {
    wrong = text;
    size_t equals = text.rfind('=');
    int64_t value = -1;
    if (equals == std::string::npos || equals == 0)
      return false;
    auto [end, error] = std::from_chars(text.data() + equals + 1, text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0)
      return false;
    dims[text.substr(0, equals)] = value;
  }
  return true;
}

/// The inputs that data fills, their sizes bound as far as --dim does.
std::vector<GraphInput> dataInputs(const Model &model, const Dims &dims) {
  std::vector<GraphInput> result;
  for (const InputInfo &input : model.inputs()) {
    if (input.isState)
      continue;
    GraphInput bound{input.name, input.type, input.hasDefault};
    for (size_t i = 0; i < input.symbols.size() && i < bound.type.dims.size(); ++i)
      if (auto it = dims.find(input.symbols[i]); it != dims.end() && bound.type.dims[i] < 0)
        bound.type.dims[i] = it->second;
    result.push_back(std::move(bound));
  }
  return result;
}

/// Sets what a CUDA plan is compiled for: `named` where it is not empty, else the device, else the oldest. False where
/// `named` names none.
bool setDevice(tools::RunFlags &flags, const std::string &named, CompileOptions &options) {
  options.device = flags.device == "cpu" ? "cpu" : "cuda";
  options.emulates = flags.device == "check";
  flags.checkedArchitecture = cudaArchitectureOf(named);
  if (flags.checkedArchitecture)
    options.cudaArchitecture = flags.checkedArchitecture;
  else if (named.empty() && options.device == "cuda" && !options.emulates)
    if (auto found = device::CudaDevice::architectureOf(flags.deviceOrdinal()))
      options.cudaArchitecture = *found;
  return named.empty() || (flags.checkedArchitecture && options.device == "cuda");
}

int runModel(const tools::RunFlags &flags, const CompileOptions &options, Communicator *ranks) {
  auto model = Model::load(flags.model);
  if (!model)
    return tools::failRun(flags.tool, model.message());
  for (const std::string &warning : (*model)->warnings())
    std::fprintf(stderr, "recast-run: warning: %s\n", warning.c_str());
  auto plan = [&](const std::map<std::string, TensorType> &inputs) {
    CompileOptions bound = options;
    bound.inputs = inputs;
    return (*model)->compile(bound);
  };
  return tools::runSession(flags, dataInputs(**model, options.dims), plan, ranks);
}

} // namespace

int main(int argc, char **argv) {
  tools::RunFlags flags(kText);
  std::vector<std::string> dimTexts;
  std::string kernels, architecture;
  flags.app
      .add_option("--cuda-arch", architecture,
                  "What a CUDA plan is compiled for (default: the device; sm_80 with --device=check or without a GPU); "
                  "sm_89, sm_90 and sm_100 have more products of 8-bit floats each")
      ->type_name("sm_NN");
  flags.app.add_option("--dim", dimTexts, "Bind a symbolic dimension (repeatable)")->type_name("NAME=N")->expected(1);
  flags.app
      .add_option(
          "--kernels", kernels,
          "generated: generate code for small operators too; library: generate none; reference: the plain evaluator "
          "only: slow, the oracle")
      ->type_name("generated|library|reference");
  if (auto code = flags.parse(argc, argv))
    return *code;
  Dims dims;
  std::string wrong;
  if (!readDims(dimTexts, dims, wrong))
    return flags.wrong("--dim=" + wrong + " is not of the form --dim=NAME=N");
  if (!kernels.empty() && kernels != "reference" && kernels != "library" && kernels != "generated")
    return flags.wrong("--kernels takes 'generated', 'library' or 'reference'");
  flags.session.referenceOnly = kernels == "reference";

  if (isPlan(flags.model)) {
    if (!dims.empty() || !kernels.empty() || !architecture.empty())
      return flags.wrong("--dim, --kernels and --cuda-arch are for models: a compiled plan has its sizes and kernels");
    return tools::withRanks(flags, [&](Communicator *ranks) { return tools::runPlan(flags, ranks); });
  }
  CompileOptions options{.dims = dims, .referenceOnly = flags.session.referenceOnly};
  if (!setDevice(flags, architecture, options))
    return flags.wrong("--cuda-arch takes sm_80 or later, with --device=cuda or --device=check");
  // A region would hide the node that a search is for.
  options.regions = kernels != "reference" && kernels != "library" && !flags.session.findNonFinite;
  if (kernels == "generated")
    options.regionElems = 0;
  return tools::withRanks(flags, [&](Communicator *ranks) { return runModel(flags, options, ranks); });
}
