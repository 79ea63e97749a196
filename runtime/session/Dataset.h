// The training data: which rows of which tensors a step's inputs are.
#pragma once
#include "runtime/session/HostTensor.h"
#include <functional>

namespace recast {

/// A graph input that data fills. A dimension that is not fixed is -1.
struct GraphInput {
  std::string name;
  TensorType type;
  bool isOptional = false; ///< Has a default value: left out where the data has no tensor of its name.
};

enum class DataLayout {
  Samples, ///< Axis 0 indexes samples, from which batches are made.
  Batches, ///< Axis 0 indexes ready batches.
  Single,  ///< The tensors are one batch, used at every step.
};

struct DataOptions {
  std::string path; ///< .safetensors, .npz, .npy, .bin or a folder of .npy files.
  DataLayout layout = DataLayout::Samples;
  int64_t batchSize = 0; ///< Samples; 0: the model's, or kDefaultBatchSize where the model leaves it open.
  bool shuffle = false;
  uint64_t seed = 0;
  int rank = 0, ranks = 1; ///< A step's rows are those of all ranks, one after another; this rank takes its share.
  bool dropLast = false;   ///< Leaves out an epoch's last batch where it is smaller than the others.
};

inline constexpr int64_t kDefaultBatchSize = 32;

/// Reads the tensors of a data file of any kind but .bin.
Result<TensorMap> readTensors(const std::string &path);

/// A stream of 16-bit tokens as two tensors of non-overlapping windows, for the model's integer input [batch, T] or
/// [micro-batches, batch, T]: the tokens, and for a second such input the labels, which are the tokens one place later.
/// The labels are the input whose name holds "label" or "target", else the second one.
Result<TensorMap> readTokens(const std::string &path, std::span<const GraphInput> inputs);

/// Steps are counted from 0 over all epochs: the position in the data follows from the step alone.
///
/// A model that accumulates over k micro-batches has inputs with a leading axis of k; where an input has one axis more
/// than the layout gives, a step takes k batches in a row.
class Dataset {
public:
  /// An error names the input, and the shapes or what the file has instead.
  static Result<std::unique_ptr<Dataset>> open(const DataOptions &options, std::vector<GraphInput> inputs);
  /// As open, on tensors that are already read. `origin` is for messages.
  static Result<std::unique_ptr<Dataset>> create(const DataOptions &options, std::vector<GraphInput> inputs,
                                                 const TensorMap &tensors, const std::string &origin);

  const std::vector<GraphInput> &inputs() const { return graphInputs; }
  int64_t rows() const { return rowCount; } ///< Samples or ready batches an epoch; 1 for layout single.
  /// Of this rank, in all steps but a smaller last one.
  int64_t rowsPerStep() const { return stepRows; }
  int64_t stepsPerEpoch() const;
  int64_t rowsAt(int64_t step) const;
  /// The inputs' types at a step that has `rows` rows.
  std::map<std::string, TensorType> types(int64_t rows) const;
  /// Writes the step's batch to `targets`, one for each of inputs(), of the types that types() gives. They keep what
  /// they hold from step to step: the batch of layout single is written once.
  Status fill(int64_t step, std::span<const TensorRef> targets);

private:
  struct Source {
    HostTensor tensor;
    std::vector<int64_t> rowDims;
    int64_t rowElems = 0;
    int64_t microBatches = 0; ///< 0: the input has no leading axis for them.
    bool hasBatchAxis = false;
    bool constant = false; ///< A scalar among rows: the same at every step.
  };
  Dataset() = default;
  Status bind(const GraphInput &input, const HostTensor &tensor);
  Status chooseRows();
  std::vector<int64_t> dimsOf(const Source &source, int64_t rows) const;

  DataOptions options;
  std::string origin;
  std::vector<GraphInput> graphInputs;
  std::vector<Source> sources;
  int64_t rowCount = 1, stepRows = 1, microBatches = 1;
  int64_t orderEpoch = -1;
  std::vector<int64_t> order;       ///< Of orderEpoch, where shuffled.
  std::vector<const void *> filled; ///< Layout single: where the batch lies already.
};

} // namespace recast
