// The training loop: data, learning rates, metrics, outputs, checkpoints. A model without state runs, too: inputs in,
// outputs out, once or for every batch.
#pragma once
#include "runtime/exec/Executor.h"
#include "runtime/session/Dataset.h"
#include "runtime/session/Metrics.h"
#include "runtime/session/NonFinite.h"
#include "runtime/session/Outputs.h"
#include "runtime/session/Profile.h"
#include "runtime/session/Progress.h"
#include "runtime/session/Safetensors.h"
#include "runtime/session/Schedule.h"

namespace recast {

/// Compiles the model for the types that its inputs have.
using Planner = std::function<Result<std::unique_ptr<Plan>>(const std::map<std::string, TensorType> &inputs)>;

struct SessionOptions {
  std::optional<DataOptions> data;
  /// Absent steps and epochs: one epoch, or one step without data. Both: whichever ends first.
  std::optional<int64_t> steps, epochs;
  std::string stateIn, stateOut; ///< Safetensors; "" for none, as for all paths here.
  std::string outputs, metrics, profile;
  int64_t checkpointEvery = 0; ///< Steps; 0: none.
  std::string checkpointDir;
  bool resume = false;        ///< From the latest checkpoint in checkpointDir, if there is one.
  bool findNonFinite = false; ///< Says which node first made a value infinite or NaN, in each step that has one.
  ScheduleOptions schedule;
  bool referenceOnly = false;
  /// The ranks that train together; null: this process alone. Rank 0 writes the files; all read the same ones.
  Communicator *communicator = nullptr;
  /// What runs plans; null: this processor.
  std::function<Result<std::unique_ptr<Executor>>(const Plan &)> makeExecutor;
  std::FILE *progress = nullptr; ///< Where progress goes; null: nowhere.
};

class Session {
public:
  /// Opens the data, compiles, and loads state: everything that can fail before the first step. `inputs` are the graph
  /// inputs that are no state.
  static Result<std::unique_ptr<Session>> create(SessionOptions options, std::vector<GraphInput> inputs,
                                                 Planner planner);

  /// Runs all steps that are left, then writes the files that were asked for. On an error none of those files exists
  /// that did not exist before, except the log of metrics and the checkpoints of completed steps.
  Status train();

  /// The executor that ran last.
  const Executor &executor() const { return *active->executor; }
  int64_t totalSteps() const { return lastStep; }

private:
  /// The model compiled for one number of rows. The plan outlives its executor.
  struct Program {
    std::unique_ptr<Plan> plan;
    std::unique_ptr<Executor> executor;
    std::vector<TensorRef> inputs;          ///< In the dataset's order.
    int loss = -1, lr = -1, lossScale = -1; ///< Buffers; -1: the model has none.
  };
  Session() = default;
  Status openData(std::vector<GraphInput> inputs);
  bool isFirstRank() const { return !options.communicator || options.communicator->rank() == 0; }
  Status checkRanks();
  Status checkTargets() const;
  Status countSteps();
  Status activate(int64_t rows);
  static Status handOver(Executor &from, Executor &to);
  void observe(Executor &executor);
  Status prepareSchedule();
  Status resume();
  Status compareRanks();
  Metadata position(int64_t step) const;
  Status runStep(int64_t step);
  bool fillAhead(int64_t step);
  Status writeResults(int64_t step) const;

  SessionOptions options;
  Planner planner;
  std::unique_ptr<Dataset> data;
  std::map<int64_t, Program> programs; ///< By rows a step.
  Program *active = nullptr;
  int64_t firstStep = 0, lastStep = 0;
  /// The step whose batch was written while the one before ran, and how that went.
  std::optional<int64_t> aheadStep;
  Status aheadStatus = Status::success();
  std::optional<Schedule> schedule;
  std::unique_ptr<MetricsWriter> metrics;
  std::unique_ptr<OutputStack> outputs;
  std::unique_ptr<Profile> profile;
  std::unique_ptr<NonFiniteSearch> search;
  std::unique_ptr<Progress> progress;
};

} // namespace recast
