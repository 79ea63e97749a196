#include "tools/run/RunSession.h"
#include "runtime/device/Checking.h"
#include "runtime/device/SessionExecutor.h"
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/ranks/Join.h"
#include <set>

namespace recast::tools {

namespace {

int explain(const Plan &plan) {
  std::printf("%sarena: %zu bytes planned\n", print(plan).c_str(), plan.arenaBytes);
  if (plan.hostBytes)
    std::printf("host: %zu bytes planned\n", plan.hostBytes);
  return kDone;
}

int explain(const Executor &executor) {
  const Plan &plan = executor.plan();
  std::printf("%sarena: %zu bytes planned, %zu bytes used\n", print(plan).c_str(), plan.arenaBytes,
              executor.arenaBytes());
  if (plan.hostBytes)
    std::printf("host: %zu bytes planned, %zu bytes used\n", plan.hostBytes, executor.hostBytes());
  return kDone;
}

/// With --explain what was chosen for each step, else once for each reason that one runs on plain kernels.
class ChoiceLog {
public:
  explicit ChoiceLog(const RunFlags &flags) : tool(flags.tool), isFull(flags.explain) {}
  void operator()(const std::string &step, const Result<std::string> &choice) {
    std::string text = choice ? *choice : "plain kernels: " + choice.message();
    if (isFull && said.insert(step).second)
      std::printf("%s: %s\n", step.c_str(), text.c_str());
    else if (!isFull && !choice && said.insert(text).second)
      std::fprintf(stderr, "%s: %s runs on %s\n", tool.c_str(), step.c_str(), text.c_str());
  }

private:
  std::string tool;
  bool isFull;
  std::set<std::string> said;
};

Result<std::unique_ptr<Executor>> createDeviceExecutor(const RunFlags &flags, const Plan &plan, Communicator *ranks) {
  if (plan.device != "cuda")
    return Status::error("--device=" + flags.device + ": the plan is compiled for " + plan.device);
  if (flags.device == "check")
    return device::createSessionExecutor(plan, std::make_unique<device::CheckingDevice>(flags.checkedArchitecture),
                                         {.streams = 3, .ranks = ranks, .onChoice = ChoiceLog(flags)});
  auto device = device::CudaDevice::open(flags.deviceOrdinal());
  if (!device)
    return device.status();
  // Of two streams one is that of the ranks.
  return device::createSessionExecutor(plan, std::move(*device),
                                       {.streams = ranks ? 2 : 1, .ranks = ranks, .onChoice = ChoiceLog(flags)});
}

/// One line an output: what a model that is no step model was run for.
void printOutputs(const Executor &executor) {
  for (const Output &output : executor.plan().outputs) {
    TensorRef tensor = executor.tensor(output.buffer);
    std::printf("%s: %s", output.name.c_str(), toString(executor.plan().buffers[output.buffer].type).c_str());
    if (tensor.elems() == 1 && isFloat8(tensor.dtype))
      dispatchFloat8(tensor.dtype, [&]<typename T>() { std::printf(" = %.9g", double(float(*tensor.as<T>()))); });
    else if (tensor.elems() == 1 && byteSize(tensor.dtype))
      dispatchAny(tensor.dtype, [&]<typename T>() {
        if constexpr (std::is_integral_v<T>)
          std::printf(" = %lld", static_cast<long long>(*tensor.as<T>()));
        else
          std::printf(" = %.9g", static_cast<double>(*tensor.as<T>()));
      });
    std::printf("\n");
  }
}

bool updatesState(const Plan &plan) {
  for (const Output &output : plan.outputs)
    if (output.updates >= 0)
      return true;
  return false;
}

std::vector<GraphInput> inputsOf(const Plan &plan) {
  std::vector<GraphInput> inputs;
  for (int input : plan.inputs)
    inputs.push_back({plan.buffers[static_cast<size_t>(input)].name, plan.buffers[static_cast<size_t>(input)].type});
  return inputs;
}

void describeTraffic(const char *tool, const Communicator &communicator, int64_t steps) {
  const Communicator::Traffic &traffic = communicator.traffic;
  std::fprintf(stderr, "%s: %d ranks: %lld all-reduces in %lld steps, %lld buckets, %lld bytes from each\n", tool,
               communicator.size(), static_cast<long long>(traffic.reductions), static_cast<long long>(steps),
               static_cast<long long>(traffic.buckets), static_cast<long long>(traffic.bytes));
}

} // namespace

int withRanks(const RunFlags &flags, const std::function<int(Communicator *)> &run) {
  auto communicator = joinRanks();
  if (!communicator)
    return failRun(flags.tool, communicator.message());
  int code = run(communicator->get());
  if (code != kDone && *communicator)
    (*communicator)->abort();
  return code;
}

int runSession(const RunFlags &flags, std::vector<GraphInput> inputs, const Planner &planner,
               Communicator *communicator) {
  auto fail = [&](const std::string &text) { return failRun(flags.tool, text); };
  bool isOnCpu = flags.device == "cpu";
  if (!isOnCpu && flags.session.findNonFinite)
    return fail("--device=" + flags.device + " shows no values of single steps: --find-nonfinite needs --device=cpu");
  if (flags.threads)
    setThreadCount(flags.threads);
  if (flags.explain && !flags.session.data) {
    auto plan = planner({});
    if (!plan)
      return fail(plan.message());
    if (!isOnCpu) // A CUDA plan can be looked at without a device.
      return explain(**plan);
    auto executor = Executor::create(**plan, flags.session.referenceOnly);
    return executor ? explain(**executor) : fail(executor.message());
  }
  SessionOptions options = flags.session;
  options.progress = flags.explain ? nullptr : stderr;
  options.communicator = communicator;
  if (!isOnCpu)
    options.makeExecutor = [&](const Plan &plan) { return createDeviceExecutor(flags, plan, communicator); };
  auto session = Session::create(std::move(options), std::move(inputs), planner);
  if (!session)
    return fail(session.message());
  if (flags.explain)
    return explain((*session)->executor());
  if (Status status = (*session)->train(); !status.ok())
    return fail(status.message());
  if (communicator && communicator->rank() != 0)
    return kDone;
  if (communicator)
    describeTraffic(flags.tool.c_str(), *communicator, (*session)->totalSteps());
  if ((*session)->totalSteps() && !updatesState((*session)->executor().plan()))
    printOutputs((*session)->executor());
  return kDone;
}

int runPlan(const RunFlags &flags, Communicator *communicator) {
  auto plan = readPlan(flags.model);
  if (!plan)
    return failRun(flags.tool, plan.message());
  if ((*plan)->device != "cpu" && flags.device == "cpu")
    return failRun(flags.tool, "'" + flags.model + "' is compiled for " + (*plan)->device +
                                   ": run it with --device=cuda, or --device=check without a GPU");
  return runSession(
      flags, inputsOf(**plan),
      [&](const auto &) -> Result<std::unique_ptr<Plan>> {
        if (!*plan) // The session asks again for another number of rows, where it could not know that there is one.
          return Status::error("'" + flags.model + "' is compiled for one batch size: pass --drop-last");
        return std::move(*plan);
      },
      communicator);
}

} // namespace recast::tools
