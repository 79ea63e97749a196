#include "runtime/session/Dataset.h"
#include "runtime/session/Random.h"
#include <algorithm>
#include <filesystem>

namespace recast {

namespace {

std::string shapeText(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i)
    text += (i ? "," : "") + (dims[i] < 0 ? std::string("?") : std::to_string(dims[i]));
  return text + "]";
}

bool matches(std::span<const int64_t> declared, std::span<const int64_t> given) {
  return std::ranges::equal(declared, given, [](int64_t d, int64_t g) { return d < 0 || d == g; });
}

/// `in.NAME` first: reference files hold outputs under plain names.
const HostTensor *findTensor(const TensorMap &tensors, const std::string &name) {
  auto it = tensors.find("in." + name);
  if (it == tensors.end())
    it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

} // namespace

Result<std::unique_ptr<Dataset>> Dataset::open(const DataOptions &options, std::vector<GraphInput> inputs) {
  bool stream = std::filesystem::path(options.path).extension() == ".bin";
  if (stream) // has tokens and labels, and no names
    std::erase_if(inputs, [](const GraphInput &input) { return input.isOptional; });
  auto tensors = stream ? readTokens(options.path, inputs) : readTensors(options.path);
  if (!tensors)
    return tensors.status();
  return create(options, std::move(inputs), *tensors, options.path);
}

Result<std::unique_ptr<Dataset>> Dataset::create(const DataOptions &options, std::vector<GraphInput> inputs,
                                                 const TensorMap &tensors, const std::string &origin) {
  std::unique_ptr<Dataset> data(new Dataset());
  data->options = options;
  data->origin = origin;
  std::erase_if(inputs, [&](const GraphInput &input) { return input.isOptional && !findTensor(tensors, input.name); });
  if (inputs.empty())
    return Status::error("'" + origin + "' has no tensor for a graph input; it has " + listTensors(tensors));
  std::string missing;
  for (const GraphInput &input : inputs)
    if (!findTensor(tensors, input.name))
      missing += (missing.empty() ? "'" : ", '") + input.name + "'";
  if (!missing.empty())
    return Status::error("'" + origin + "' has no tensor for the graph input " + missing + "; it has " +
                         listTensors(tensors));
  for (const GraphInput &input : inputs)
    if (Status status = data->bind(input, *findTensor(tensors, input.name)); !status.ok())
      return status;
  data->graphInputs = std::move(inputs);
  if (Status status = data->chooseRows(); !status.ok())
    return status;
  return data;
}

Status Dataset::bind(const GraphInput &input, const HostTensor &tensor) {
  const TensorType &type = input.type;
  if (!convertible(tensor.type.dtype, type.dtype))
    return Status::error("input '" + input.name + "' is " + std::string(name(type.dtype)) + ", and its tensor in '" +
                         origin + "' is " + std::string(name(tensor.type.dtype)) +
                         ": only floating-point types convert into each other, and integer types");
  Source source;
  source.tensor = tensor;
  std::span<const int64_t> dims = tensor.type.dims;
  source.constant = options.layout != DataLayout::Single && dims.empty() && type.dims.empty();
  bool whole = options.layout == DataLayout::Single || source.constant;
  if (!whole && dims.empty())
    return Status::error("the tensor of input '" + input.name + "' in '" + origin +
                         "' is a scalar: its axis 0 should index the " +
                         (options.layout == DataLayout::Samples ? "samples" : "batches"));
  source.rowDims.assign(dims.begin() + (whole ? 0 : 1), dims.end());
  source.rowElems = elementCount(source.rowDims);
  source.hasBatchAxis = !whole && options.layout == DataLayout::Samples;

  size_t rank = source.rowDims.size() + (source.hasBatchAxis ? 1 : 0);
  bool stacked = !whole && type.dims.size() == rank + 1;
  std::span<const int64_t> declared(type.dims);
  if (stacked) {
    source.microBatches = declared[0];
    if (source.microBatches < 1)
      return Status::error("the number of micro-batches of input '" + input.name + "' " + shapeText(type.dims) +
                           " is not fixed: bind its first dimension with --dim");
    declared = declared.subspan(1);
  }
  bool fits = declared.size() == rank &&
              matches(declared.subspan(std::min<size_t>(declared.size(), source.hasBatchAxis ? 1 : 0)), source.rowDims);
  if (!fits) {
    std::vector<int64_t> given(source.rowDims);
    if (source.hasBatchAxis)
      given.insert(given.begin(), -1);
    std::string hint = options.layout == DataLayout::Samples ? "; if axis 0 does not index samples, pass "
                                                               "--data-layout=batches or --data-layout=single"
                                                             : "";
    return Status::error("input '" + input.name + "' is " + shapeText(type.dims) + ", and its tensor in '" + origin +
                         "', " + shapeText(dims) + ", gives " + shapeText(given) + " a step" + hint);
  }
  sources.push_back(std::move(source));
  return Status::success();
}

/// Sets the rows of an epoch and of a step, on which all inputs must agree.
Status Dataset::chooseRows() {
  const Source *first = nullptr;
  std::string firstName;
  int64_t batch = options.batchSize;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source &source = sources[i];
    const std::string &inputName = graphInputs[i].name;
    if (options.layout == DataLayout::Single || source.constant)
      continue;
    int64_t rows = source.tensor.type.dims[0], micro = std::max<int64_t>(source.microBatches, 1);
    if (first && (rows != rowCount || micro != microBatches))
      return Status::error("inputs '" + firstName + "' and '" + inputName + "' do not go together: '" + origin +
                           "' has " + std::to_string(rowCount) + " rows for the one and " + std::to_string(rows) +
                           " for the other, and a step takes " + std::to_string(microBatches) + " and " +
                           std::to_string(micro) + " micro-batches");
    if (!first) {
      first = &source;
      firstName = inputName;
      rowCount = rows;
      microBatches = micro;
    }
    int64_t declared = source.hasBatchAxis ? graphInputs[i].type.dims[source.microBatches ? 1 : 0] : -1;
    if (declared >= 0 && batch && declared != batch)
      return Status::error("input '" + inputName + "' " + shapeText(graphInputs[i].type.dims) +
                           " has a fixed batch of " + std::to_string(declared) + ", but --batch-size asks for " +
                           std::to_string(batch));
    if (declared >= 0)
      batch = declared;
  }
  if (!first)
    return Status::success();
  if (rowCount < 1)
    return Status::error("'" + origin + "' holds no data: the tensor of input '" + firstName + "' is " +
                         shapeText(first->tensor.type.dims));
  bool samples = options.layout == DataLayout::Samples;
  if (samples && batch < 1)
    batch = std::max<int64_t>(1, std::min(kDefaultBatchSize, rowCount / microBatches));
  stepRows = microBatches * (samples ? batch : 1);
  int64_t all = stepRows * options.ranks, rest = rowCount % all;
  std::string ofRanks = options.ranks > 1 ? " on " + std::to_string(options.ranks) + " ranks" : "";
  if (rowCount < all && (options.dropLast || !samples || microBatches > 1 || rest % options.ranks))
    return Status::error("'" + origin + "' has " + std::to_string(rowCount) + " rows, fewer than the " +
                         std::to_string(all) + " of one step" + ofRanks);
  if (rest && !options.dropLast && (microBatches > 1 || !samples))
    return Status::error("'" + origin + "' has " + std::to_string(rowCount) + " rows, no multiple of the " +
                         std::to_string(all) + " that the micro-batches of a step take" + ofRanks +
                         ": pass --drop-last");
  if (!options.dropLast && rest % options.ranks)
    return Status::error("the last step of an epoch has " + std::to_string(rest) + " of the " +
                         std::to_string(rowCount) + " rows of '" + origin + "', which " +
                         std::to_string(options.ranks) + " ranks cannot share evenly: pass --drop-last");
  if (rest && !options.dropLast)
    for (size_t i = 0; i < sources.size(); ++i)
      if (sources[i].hasBatchAxis && graphInputs[i].type.dims[0] >= 0)
        return Status::error("input '" + graphInputs[i].name + "' has a fixed batch of " + std::to_string(stepRows) +
                             ", and the " + std::to_string(rowCount) + " samples of '" + origin +
                             "' leave a last batch of " + std::to_string(rest / options.ranks) + ": pass --drop-last");
  return Status::success();
}

int64_t Dataset::stepsPerEpoch() const {
  int64_t all = stepRows * options.ranks;
  return options.dropLast ? rowCount / all : (rowCount + all - 1) / all;
}

int64_t Dataset::rowsAt(int64_t step) const {
  int64_t first = step % stepsPerEpoch() * stepRows * options.ranks;
  return std::min(stepRows, (rowCount - first) / options.ranks);
}

std::vector<int64_t> Dataset::dimsOf(const Source &source, int64_t rows) const {
  std::vector<int64_t> dims;
  if (source.microBatches)
    dims.push_back(source.microBatches);
  if (source.hasBatchAxis)
    dims.push_back(rows / microBatches);
  dims.insert(dims.end(), source.rowDims.begin(), source.rowDims.end());
  return dims;
}

std::map<std::string, TensorType> Dataset::types(int64_t rows) const {
  std::map<std::string, TensorType> result;
  for (size_t i = 0; i < sources.size(); ++i)
    result[graphInputs[i].name] = {graphInputs[i].type.dtype, dimsOf(sources[i], rows)};
  return result;
}

Status Dataset::fill(int64_t step, std::span<const TensorRef> targets) {
  bool isSingle = options.layout == DataLayout::Single;
  if (isSingle && std::ranges::equal(filled, targets, {}, {}, &TensorRef::data))
    return Status::success();
  int64_t epoch = step / stepsPerEpoch(), rows = rowsAt(step);
  int64_t first = step % stepsPerEpoch() * stepRows * options.ranks + options.rank * rows;
  if (options.shuffle && epoch != orderEpoch) {
    order = shuffledOrder(rowCount, options.seed, epoch);
    orderEpoch = epoch;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source &source = sources[i];
    bool whole = options.layout == DataLayout::Single || source.constant;
    size_t from = byteSize(source.tensor.type.dtype), to = byteSize(targets[i].dtype);
    for (int64_t r = 0, count = whole ? 1 : rows; r < count; ++r) {
      int64_t row = whole ? 0 : options.shuffle ? order[first + r] : first + r;
      std::string bad;
      const std::byte *data = source.tensor.data + row * source.rowElems * static_cast<int64_t>(from);
      std::byte *target = targets[i].as<std::byte>() + r * source.rowElems * static_cast<int64_t>(to);
      if (!convert(source.tensor.type.dtype, data, targets[i].dtype, target, source.rowElems, bad))
        return Status::error("the tensor of input '" + graphInputs[i].name + "' in '" + origin + "' holds " + bad +
                             ", which does not fit the input's " + std::string(name(targets[i].dtype)));
    }
  }
  filled.clear();
  for (size_t i = 0; isSingle && i < targets.size(); ++i)
    filled.push_back(targets[i].data);
  return Status::success();
}

} // namespace recast
