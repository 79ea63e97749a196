#include "runtime/kernels/cpu/Generated.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/plan/CheckPlan.h"
#include "runtime/reference/Loops.h"

namespace recast {

namespace {

class Generated final : public Kernel {
public:
  Status prepare(const StepSpec &spec, const GeneratedCode &code) {
    std::vector<int64_t> ranges = spec.attrs.getInts("ranges"), grains = spec.attrs.getInts("grains");
    std::vector<std::string> entries = spec.attrs.getStrings("entries");
    for (size_t i = 0; i < entries.size(); ++i) {
      GeneratedCode::Entry entry = code.find(entries[i]);
      if (!entry || i >= ranges.size() || i >= grains.size())
        return Status::error("the plan is damaged: no generated code for '" + spec.name + "'");
      phases.push_back({entry, ranges[i], grains[i]});
    }
    std::vector<int64_t> numbers = spec.attrs.getInts("in_place");
    for (size_t i = 0; i + 1 < numbers.size(); i += 2)
      pairs.push_back({static_cast<size_t>(numbers[i]), static_cast<size_t>(numbers[i + 1])});
    std::vector<int64_t> ofChecks = spec.attrs.getInts("checks");
    std::vector<std::string> nodes = spec.attrs.getStrings("checked");
    for (size_t i = 0; i < nodes.size() && 4 * i + 3 < ofChecks.size(); ++i) {
      const int64_t *check = ofChecks.data() + 4 * i;
      if (check[0] < 0 || check[0] >= static_cast<int64_t>(spec.inputs.size()))
        return Status::error("the plan is damaged: '" + spec.name + "' checks an input that it has not");
      checks.push_back({static_cast<size_t>(check[0]), check[1], check[2] != 0, check[3], nodes[i]});
    }
    bytes = static_cast<size_t>(spec.attrs.getInt("workspace", 0));
    buffers.resize(spec.inputs.size() + spec.outputs.size());
    return Status::success();
  }

  size_t workspaceBytes() const override { return bytes; }
  std::vector<InPlace> inPlace() const override { return pairs; }
  bool mayFail() const override { return !checks.empty(); }
  Status run(const KernelArgs &args) override {
    for (const Check &check : checks)
      if (Status status = check.run(args.inputs[check.input]); !status.ok())
        return status;
    size_t k = 0;
    for (const TensorRef &input : args.inputs)
      buffers[k++] = input.data;
    for (const TensorRef &output : args.outputs)
      buffers[k++] = output.data;
    for (const Phase &phase : phases)
      parallelFor(phase.ranges, phase.grain,
                  [&](int64_t begin, int64_t end) { phase.entry(buffers.data(), args.workspace.data(), begin, end); });
    return Status::success();
  }

private:
  struct Phase {
    GeneratedCode::Entry entry;
    int64_t ranges, grain;
  };
  struct Check {
    size_t input;
    int64_t classes;
    bool ignores;
    int64_t ignoreIndex;
    std::string node;

    Status run(const TensorRef &labels) const {
      for (int64_t i = 0; i < labels.elems(); ++i) {
        int64_t label = reference::loadIndex(labels, i);
        if ((label < 0 || label >= classes) && !(ignores && label == ignoreIndex))
          return Status::error("node " + node + ": label " + std::to_string(label) + " at position " +
                               std::to_string(i) + " is outside [0, " + std::to_string(classes - 1) + "]" +
                               (ignores ? " and is not ignore_index" : ""));
      }
      return Status::success();
    }
  };
  std::vector<Phase> phases;
  std::vector<Check> checks;
  std::vector<InPlace> pairs;
  std::vector<void *> buffers;
  size_t bytes = 0;
};

} // namespace

Status GeneratedCode::load(std::span<const CodeObject> objects) {
  for (const CodeObject &object : objects) {
    if (object.kind != CodeObject::SharedObject)
      continue;
    if (Status status = checkTarget(object.target); !status.ok())
      return Status::error("the plan cannot run: " + status.message());
    Result<SharedObject> opened = SharedObject::open(object.bytes);
    if (!opened)
      return opened.status();
    loaded.push_back(std::move(*opened));
  }
  return Status::success();
}

GeneratedCode::Entry GeneratedCode::find(const std::string &name) const {
  for (const SharedObject &object : loaded)
    if (void *symbol = object.find(name))
      return reinterpret_cast<Entry>(symbol);
  return nullptr;
}

Result<std::unique_ptr<Kernel>> createGenerated(const StepSpec &spec, const GeneratedCode &code) {
  auto kernel = std::make_unique<Generated>();
  if (Status status = kernel->prepare(spec, code); !status.ok())
    return status;
  return std::unique_ptr<Kernel>(std::move(kernel));
}

} // namespace recast
