#include "runtime/compile/Compile.h"
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/kernels/Parallel.h"
#include "tools/common/Diagnostics.h"
#include "tools/recast-run/Flags.h"
#include <llvm/Support/Format.h>

using namespace recast;

namespace {

using tools::kDone;

int fail(const std::string &message) { return tools::fail("recast-run", message); }

/// The inputs that data fills, their sizes bound as far as --dim does.
std::vector<GraphInput> dataInputs(const Model &model, const std::map<std::string, int64_t> &dims) {
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

int explain(const Executor &executor) {
  const Plan &plan = executor.plan();
  llvm::outs() << print(plan) << "arena: " << plan.arenaBytes << " bytes planned, " << executor.arenaBytes()
               << " bytes used\n";
  return kDone;
}

/// One line an output: what a model that is no step model was run for.
void printOutputs(const Executor &executor) {
  for (const Output &output : executor.plan().outputs) {
    TensorRef tensor = executor.tensor(output.buffer);
    llvm::outs() << output.name << ": " << toString(executor.plan().buffers[output.buffer].type);
    if (tensor.elems() == 1 && isFloat8(tensor.dtype))
      dispatchFloat8(tensor.dtype,
                     [&]<typename T>() { llvm::outs() << llvm::format(" = %.9g", double(float(*tensor.as<T>()))); });
    else if (tensor.elems() == 1 && byteSize(tensor.dtype))
      dispatchAny(tensor.dtype, [&]<typename T>() {
        if constexpr (std::is_integral_v<T>)
          llvm::outs() << " = " << static_cast<int64_t>(*tensor.as<T>());
        else
          llvm::outs() << llvm::format(" = %.9g", static_cast<double>(*tensor.as<T>()));
      });
    llvm::outs() << "\n";
  }
}

bool updatesState(const Plan &plan) {
  for (const Output &output : plan.outputs)
    if (output.updates >= 0)
      return true;
  return false;
}

/// Shows the plan, which needs no device; a run needs one, and generated code for it.
int runOnCuda(const tools::Flags &flags, const Model &model) {
  if (flags.explain) {
    CompileOptions options{.dims = flags.dims};
    options.device = "cuda";
    auto plan = model.compile(options);
    if (!plan)
      return fail(plan.message());
    llvm::outs() << print(**plan) << "arena: " << (*plan)->arenaBytes << " bytes planned\n";
    return kDone;
  }
  int ordinal = 0;
  if (llvm::StringRef number = llvm::StringRef(flags.device).split(':').second; !number.empty())
    number.getAsInteger(10, ordinal);
  auto device = device::CudaDevice::open(ordinal);
  if (!device)
    return fail(device.message());
  return fail("--device=" + flags.device + ": " + (*device)->name() +
              " is there, but regions are not compiled for it in this version; run with --device=cpu");
}

int runModel(const tools::Flags &flags) {
  if (flags.threads)
    setThreadCount(flags.threads);
  auto model = Model::load(flags.model);
  if (!model)
    return fail(model.message());
  for (const std::string &warning : (*model)->warnings())
    llvm::errs() << "recast-run: warning: " << warning << "\n";
  if (flags.device != "cpu")
    return runOnCuda(flags, **model);
  auto compile = [&](const std::map<std::string, TensorType> &inputs) {
    return (*model)->compile({flags.dims, inputs, flags.session.referenceOnly});
  };
  if (flags.explain && !flags.session.data) {
    auto plan = compile({});
    if (!plan)
      return fail(plan.message());
    auto executor = Executor::create(**plan, flags.session.referenceOnly);
    return executor ? explain(**executor) : fail(executor.message());
  }
  SessionOptions options = flags.session;
  options.progress = flags.explain ? nullptr : stderr;
  auto session = Session::create(std::move(options), dataInputs(**model, flags.dims), compile);
  if (!session)
    return fail(session.message());
  if (flags.explain)
    return explain((*session)->executor());
  if (Status status = (*session)->train(); !status.ok())
    return fail(status.message());
  if ((*session)->totalSteps() && !updatesState((*session)->executor().plan()))
    printOutputs((*session)->executor());
  return kDone;
}

} // namespace

int main(int argc, char **argv) {
  tools::Flags flags;
  return flags.parse(argc, argv) ? runModel(flags) : tools::kUsage;
}
