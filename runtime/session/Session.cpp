#include "runtime/session/Session.h"
#include "runtime/plan/Files.h"
#include "runtime/session/State.h"
#define XXH_INLINE_ALL
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace recast {

namespace {

/// A one-element tensor as a metric.
std::variant<bool, int64_t, double> scalarOf(const TensorRef &tensor) {
  std::variant<bool, int64_t, double> value;
  dispatchAny(tensor.dtype, [&]<typename T>() {
    if constexpr (std::is_same_v<T, bool>)
      value = *tensor.as<bool>();
    else if constexpr (std::is_integral_v<T>)
      value = static_cast<int64_t>(*tensor.as<T>());
    else
      value = static_cast<double>(*tensor.as<T>());
  });
  return value;
}

std::optional<double> numberAt(const Executor &executor, int buffer) {
  if (buffer < 0)
    return std::nullopt;
  return std::visit([](auto v) { return static_cast<double>(v); }, scalarOf(executor.tensor(buffer)));
}

bool isScalar(const Plan &plan, int buffer) {
  const TensorType &type = plan.buffers[buffer].type;
  return type.dims.empty() && byteSize(type.dtype);
}

/// The output called loss, else the first floating-point scalar that is no new state; -1 if there is none.
int findLoss(const Plan &plan) {
  int found = -1;
  for (const Output &output : plan.outputs) {
    if (output.updates >= 0 || !isScalar(plan, output.buffer) || !isFloat(plan.buffers[output.buffer].type.dtype))
      continue;
    if (output.name == "loss")
      return output.buffer;
    if (found < 0)
      found = output.buffer;
  }
  return found;
}

/// What stands for a name of the step model that the model itself has given to something else.
std::string ownName(const Plan &plan, std::string_view name) {
  auto entry = plan.metadata.find("recast.renamed");
  if (entry == plan.metadata.end())
    return std::string(name);
  auto renamed = nlohmann::json::parse(entry->second, nullptr, /*allow_exceptions=*/false);
  auto own = renamed.is_object() ? renamed.find(name) : renamed.end();
  return own != renamed.end() && own->is_string() ? own->get<std::string>() : std::string(name);
}

int findScalarState(const Plan &plan, std::string_view name) {
  std::string own = ownName(plan, name);
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].place == Place::State && plan.buffers[i].name == own && plan.buffers[i].type.elems() == 1 &&
        isFloat(plan.buffers[i].type.dtype))
      return static_cast<int>(i);
  return -1;
}

std::string listInputs(std::span<const GraphInput> inputs) {
  std::string text;
  for (const GraphInput &input : inputs) {
    text += (text.empty() ? "'" : ", '") + input.name + "' (" + std::string(name(input.type.dtype)) + "[";
    for (size_t i = 0; i < input.type.dims.size(); ++i)
      text += (i ? "," : "") + (input.type.dims[i] < 0 ? std::string("?") : std::to_string(input.type.dims[i]));
    text += "])";
  }
  return text;
}

} // namespace

Result<std::unique_ptr<Session>> Session::create(SessionOptions options, std::vector<GraphInput> inputs,
                                                 Planner planner) {
  std::unique_ptr<Session> session(new Session());
  session->options = std::move(options);
  session->planner = std::move(planner);
  Status status = session->checkRanks();
  if (status.ok())
    status = session->checkTargets();
  if (status.ok())
    status = session->openData(std::move(inputs));
  if (status.ok())
    status = session->countSteps();
  if (status.ok())
    status = session->activate(session->data ? session->data->rowsAt(0) : 1);
  if (status.ok())
    status = session->prepareSchedule();
  if (status.ok() && !session->options.stateIn.empty())
    status = readState(session->options.stateIn, *session->active->executor).status();
  if (status.ok() && session->options.resume)
    status = session->resume();
  if (status.ok())
    status = session->active->executor->pushState();
  if (status.ok() && session->options.communicator)
    status = session->compareRanks();
  if (!status.ok())
    return status;
  return session;
}

Status Session::train() {
  if (!options.metrics.empty()) {
    auto writer = MetricsWriter::create(options.metrics, options.resume ? firstStep : -1);
    if (!writer)
      return writer.status();
    metrics = std::move(*writer);
  }
  if (!options.outputs.empty())
    outputs = std::make_unique<OutputStack>(options.outputs);
  if (!options.profile.empty())
    profile = std::make_unique<Profile>(options.profile);
  if (options.findNonFinite)
    search = std::make_unique<NonFiniteSearch>();
  for (auto &[rows, program] : programs)
    observe(*program.executor);
  progress = std::make_unique<Progress>(options.progress, firstStep, lastStep);
  for (int64_t step = firstStep; step < lastStep; ++step)
    if (Status status = runStep(step); !status.ok()) {
      progress.reset(); // Ends the bar's line before the message.
      return Status::error("step " + std::to_string(step + 1) + ": " + status.message());
    }
  progress.reset();
  return writeResults(lastStep);
}

Status Session::openData(std::vector<GraphInput> inputs) {
  if (options.data) {
    if (inputs.empty())
      return Status::error("the model has no inputs that data could fill: leave out --data");
    auto opened = Dataset::open(*options.data, std::move(inputs));
    if (!opened)
      return opened.status();
    data = std::move(*opened);
    return Status::success();
  }
  std::erase_if(inputs, [](const GraphInput &input) { return input.isOptional; });
  if (!inputs.empty())
    return Status::error("there is no data for the inputs " + listInputs(inputs) +
                         ": pass --data=FILE with tensors of these names");
  return Status::success();
}

/// Each rank takes its rows, and only the first one writes and talks.
Status Session::checkRanks() {
  if (!options.communicator)
    return Status::success();
  if (options.data) {
    if (options.data->layout == DataLayout::Single)
      return Status::error(
          "--data-layout=single is one batch, which several ranks cannot share: stack a batch for each "
          "of them, and pass --data-layout=batches");
    options.data->rank = options.communicator->rank();
    options.data->ranks = options.communicator->size();
  }
  if (!isFirstRank()) {
    options.stateOut = options.outputs = options.metrics = options.profile = "";
    options.checkpointEvery = 0;
    options.progress = nullptr;
  }
  return Status::success();
}

/// All ranks have the same plan, data and position, or no two steps of theirs would mean the same.
Status Session::compareRanks() {
  Communicator &communicator = *options.communicator;
  if (communicator.size() > 1 && !active->plan->metadata.contains("recast.data_parallel"))
    return Status::error("the model was not made for several ranks, and each of the " +
                         std::to_string(communicator.size()) +
                         " would train one of its own: make the step with recast-opt --data-parallel");
  std::string text = print(*active->plan);
  for (const auto &[key, value] : position(firstStep))
    text += key + "=" + value + "\n";
  uint64_t hash = XXH3_64bits(text.data(), text.size()); // As two numbers that a double holds.
  std::vector<double> hashes(2 * static_cast<size_t>(communicator.size()));
  size_t own = 2 * static_cast<size_t>(communicator.rank());
  hashes[own] = static_cast<double>(hash >> 32);
  hashes[own + 1] = static_cast<double>(hash & 0xffffffffu);
  if (Status status = communicator.sum(hashes.data(), hashes.size()); !status.ok())
    return status;
  for (size_t rank = 0; rank < hashes.size(); rank += 2)
    if (hashes[rank] != hashes[0] || hashes[rank + 1] != hashes[1])
      return Status::error("rank " + std::to_string(rank / 2) +
                           " does something else than rank 0: the model, the flags and the checkpoint must be the "
                           "same, and machines whose processors differ need --kernels=reference");
  return Status::success();
}

Status Session::checkTargets() const {
  for (const std::string &path : {options.stateOut, options.outputs, options.profile})
    if (!path.empty())
      if (Status status = checkWritable(path); !status.ok())
        return status;
  if ((options.checkpointEvery || options.resume) && options.checkpointDir.empty())
    return Status::error("--checkpoint-every and --resume need --checkpoint-dir");
  if (options.checkpointEvery && options.resume == false && !latestCheckpoint(options.checkpointDir).empty())
    return Status::error("'" + options.checkpointDir +
                         "' holds checkpoints of an earlier run: pass --resume to go on from there, or another folder");
  return Status::success();
}

Status Session::countSteps() {
  int64_t perEpoch = data ? data->stepsPerEpoch() : 1;
  int64_t limit = INT64_MAX;
  if (options.epochs && __builtin_mul_overflow(*options.epochs, perEpoch, &limit))
    return Status::error(std::to_string(*options.epochs) + " epochs are too many");
  if (options.steps)
    limit = std::min(limit, *options.steps);
  lastStep = options.epochs || options.steps ? limit : perEpoch;
  return Status::success();
}

Status Session::handOver(Executor &from, Executor &to) {
  if (Status status = from.pullState(); !status.ok())
    return status;
  copyState(from, to);
  return to.pushState();
}

/// Makes the program for `rows` the active one; compiles it at its first use, and hands the state on to it.
Status Session::activate(int64_t rows) {
  auto [it, isNew] = programs.try_emplace(rows);
  Program &program = it->second;
  if (isNew) {
    auto plan = planner(data ? data->types(rows) : std::map<std::string, TensorType>());
    if (!plan)
      return plan.status();
    program.plan = std::move(*plan);
    auto executor = options.makeExecutor ? options.makeExecutor(*program.plan)
                                         : Executor::create(*program.plan, options.referenceOnly, options.communicator);
    if (!executor)
      return executor.status();
    program.executor = std::move(*executor);
    observe(*program.executor);
    for (const auto &[name, type] : data ? data->types(rows) : std::map<std::string, TensorType>()) {
      int buffer = program.executor->find(name);
      if (buffer >= 0 && program.plan->buffers[buffer].type != type)
        return Status::error("input '" + name + "' is " + toString(program.plan->buffers[buffer].type) +
                             ", and the data gives " + toString(type));
    }
    if (data)
      for (const GraphInput &input : data->inputs()) {
        int buffer = program.executor->find(input.name);
        if (buffer < 0)
          return Status::error("the compiled model has no input '" + input.name + "'");
        program.inputs.push_back(program.executor->tensor(buffer));
      }
    program.loss = findLoss(*program.plan);
    program.lr = findScalarState(*program.plan, "lr");
    program.lossScale = findScalarState(*program.plan, "loss_scale");
  }
  if (active && active != &program)
    if (Status status = handOver(*active->executor, *program.executor); !status.ok())
      return status;
  active = &program;
  return Status::success();
}

void Session::observe(Executor &executor) {
  if (profile)
    executor.workObserver = [this](const WorkEvent &event) { profile->observe(event); };
  if (profile || search)
    executor.observer = [this](const StepEvent &event) {
      if (profile)
        profile->observe(event);
      if (search)
        search->observe(event);
    };
}

/// The base rate is the model's own, whatever --state-in or a checkpoint hold: theirs may have decayed already.
Status Session::prepareSchedule() {
  std::optional<double> base = numberAt(*active->executor, active->lr);
  auto made = Schedule::create(options.schedule, base.value_or(0), lastStep);
  if (!made)
    return made.status();
  if (made->changes() && !base)
    return Status::error("the model has no state 'lr' that --lr-schedule or --warmup-steps could set");
  schedule = std::move(*made);
  return Status::success();
}

/// What must be equal for a resumed run to go on as if it had never stopped, and where it stopped.
Metadata Session::position(int64_t step) const {
  Metadata metadata{{"recast.step", std::to_string(step)}, {"recast.schedule", schedule->describe()}};
  if (data) {
    const DataOptions &d = *options.data;
    metadata["recast.data"] = std::to_string(data->rows()) + " rows, " + std::to_string(data->rowsPerStep()) +
                              " a step" + (d.ranks > 1 ? " on each of " + std::to_string(d.ranks) + " ranks" : "") +
                              (d.dropLast ? ", last one dropped" : "") +
                              (d.shuffle ? ", shuffled with seed " + std::to_string(d.seed) : "");
    metadata["recast.epoch"] = std::to_string(step / data->stepsPerEpoch());
    metadata["recast.epoch_step"] = std::to_string(step % data->stepsPerEpoch());
  }
  return metadata;
}

Status Session::resume() {
  std::string path = latestCheckpoint(options.checkpointDir);
  if (path.empty()) {
    if (options.progress)
      std::fprintf(options.progress, "no checkpoint in '%s' yet: starting from the beginning\n",
                   options.checkpointDir.c_str());
    return Status::success();
  }
  auto metadata = readState(path, *active->executor);
  if (!metadata)
    return metadata.status();
  const std::string &text = (*metadata)["recast.step"];
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), firstStep);
  if (error != std::errc() || end != text.data() + text.size() || firstStep < 0)
    return Status::error("'" + path + "' is no checkpoint: it does not say after which step it was written");
  for (const auto &[key, now] : position(firstStep))
    if (const std::string &then = (*metadata)[key]; then != now)
      return Status::error("'" + path + "' cannot be resumed with these flags: its " +
                           key.substr(sizeof("recast.") - 1) + " is '" + then + "', and this run has '" + now + "'");
  if (options.progress)
    std::fprintf(options.progress, "resuming after step %lld from '%s'\n", static_cast<long long>(firstStep),
                 path.c_str());
  return Status::success();
}

/// Writes the batch of a step that the active program will run next; false where another one will, or none.
bool Session::fillAhead(int64_t step) {
  if (!data || step >= lastStep || data->rowsAt(step) != data->rowsAt(step - 1))
    return false;
  aheadStatus = data->fill(step, active->inputs);
  aheadStep = step;
  return true;
}

Status Session::runStep(int64_t step) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start = Clock::now();
  if (data) {
    if (Status status = activate(data->rowsAt(step)); !status.ok())
      return status;
    if (Status status = aheadStep == step ? aheadStatus : data->fill(step, active->inputs); !status.ok())
      return status;
  }
  Executor &executor = *active->executor;
  if (schedule->changes())
    dispatchFloat(executor.tensor(active->lr).dtype,
                  [&]<typename T>() { *executor.tensor(active->lr).as<T>() = static_cast<T>(schedule->at(step)); });
  // The values that this step uses: afterwards the state holds the next step's.
  std::optional<double> lr = numberAt(executor, active->lr), lossScale = numberAt(executor, active->lossScale);
  if (profile)
    profile->beginStep(step + 1);
  if (search)
    search->begin(executor);
  if (Status status = executor.runAhead([&] { return fillAhead(step + 1); }); !status.ok())
    return status;

  if (search)
    for (const std::string &finding : search->findings(executor))
      progress->say("step " + std::to_string(step + 1) + ": " + finding);
  if (outputs) {
    if (Status status = executor.pullState(); !status.ok()) // New state is among the outputs.
      return status;
    if (Status status = outputs->append(executor); !status.ok())
      return status;
  }
  if (metrics) {
    std::vector<Metric> line;
    for (const Output &output : active->plan->outputs)
      if (output.updates < 0 && isScalar(*active->plan, output.buffer))
        line.push_back({output.name, scalarOf(executor.tensor(output.buffer))});
    auto loss = std::ranges::find(line, "loss", &Metric::name);
    if (loss != line.end())
      std::rotate(line.begin(), loss, loss + 1);
    auto add = [&](const char *name, std::optional<double> value) {
      if (value && std::ranges::find(line, name, &Metric::name) == line.end())
        line.push_back({name, *value});
    };
    add("lr", lr);
    add("loss_scale", lossScale);
    add("seconds", std::chrono::duration<double>(Clock::now() - start).count());
    if (Status status = metrics->write(step + 1, line); !status.ok())
      return status;
  }
  if (options.checkpointEvery && (step + 1) % options.checkpointEvery == 0) {
    std::error_code error;
    std::filesystem::create_directories(options.checkpointDir, error);
    if (Status status = executor.pullState(); !status.ok())
      return status;
    auto file = stageState(checkpointPath(options.checkpointDir, step + 1), executor, position(step + 1));
    Status status = file ? (*file)->commit() : file.status();
    if (!status.ok())
      return status;
  }
  progress->update(step + 1, numberAt(executor, active->loss), lossScale);
  return Status::success();
}

Status Session::writeResults(int64_t step) const {
  // Everything is on the disk before the first of them gets its name.
  std::vector<std::unique_ptr<AtomicFile>> staged;
  auto add = [&](Result<std::unique_ptr<AtomicFile>> file) {
    if (file)
      staged.push_back(std::move(*file));
    return file.status();
  };
  Status status = outputs ? add(outputs->stage()) : Status::success();
  if (status.ok() && profile)
    status = add(profile->stage());
  if (status.ok() && !options.stateOut.empty())
    status = active->executor->pullState();
  if (status.ok() && !options.stateOut.empty())
    status = add(stageState(options.stateOut, *active->executor, position(std::max(step, firstStep))));
  for (const auto &file : staged)
    if (status.ok())
      status = file->commit();
  return status;
}

} // namespace recast
