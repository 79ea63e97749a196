#include "runtime/reference/Reference.h"
#include "runtime/reference/Loops.h"
#include <algorithm>
#include <tuple>

namespace recast::reference {
namespace {

auto key(const Entry &entry) { return std::tie(entry.domain, entry.op, entry.sinceFirst); }

/// Every family's entries, sorted by domain, operator and first version.
const std::vector<Entry> &allEntries() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    for (std::span<const Entry> family : {elementwiseEntries(), reductionEntries(), shapeEntries(), indexingEntries(),
                                          productEntries(), convolutionEntries(), normalizationEntries(), lossEntries(),
                                          attentionEntries(), quantizationEntries(), trainEntries()})
      all.insert(all.end(), family.begin(), family.end());
    std::sort(all.begin(), all.end(), [](const Entry &a, const Entry &b) { return key(a) < key(b); });
    return all;
  }();
  return entries;
}

/// The operators that take 8-bit floats: those that convert them, and those that only move elements.
bool takesFloat8(std::string_view op) {
  constexpr std::string_view kOps[] = {"Cast",           "CastLike",
                                       "QuantizeLinear", "DequantizeLinear",
                                       "quantize_fp8",   "quantize_fp8_tiles",
                                       "Concat",         "Expand",
                                       "Flatten",        "Gather",
                                       "Identity",       "dequantize_fp8",
                                       "Reshape",        "Slice",
                                       "Split",          "Squeeze",
                                       "Transpose",      "Unsqueeze",
                                       "barrier",        "keep_if",
                                       "offload",        "fetch"};
  return std::ranges::find(kOps, op) != std::end(kOps);
}

class ReferenceKernel final : public Kernel {
public:
  ReferenceKernel(const StepSpec &spec, const Entry &entry)
      : spec(spec), run_(entry.run), bytes(entry.workspaceBytes ? entry.workspaceBytes(spec) : 0),
        pairs(entry.inPlace ? entry.inPlace(spec) : std::vector<InPlace>()),
        canFail(entry.mayFail && entry.mayFail(spec)) {
    this->spec.constants.clear(); // They are only valid while the plan is compiled.
  }
  size_t workspaceBytes() const override { return bytes; }
  std::vector<InPlace> inPlace() const override { return pairs; }
  bool mayFail() const override { return canFail; }
  Status run(const KernelArgs &args) override { return run_(spec, args); }

private:
  StepSpec spec;
  Status (*run_)(const StepSpec &, const KernelArgs &);
  size_t bytes;
  std::vector<InPlace> pairs;
  bool canFail;
};

} // namespace

std::vector<InPlace> fittingPairs(const StepSpec &spec, std::initializer_list<InPlace> candidates) {
  std::vector<InPlace> fitting;
  for (InPlace pair : candidates) {
    if (!present(std::span(spec.outputs), pair.output) || !present(std::span(spec.inputs), pair.input))
      continue;
    const TensorType &output = spec.outputs[pair.output], &input = spec.inputs[pair.input];
    if (output.dims == input.dims && byteSize(output.dtype) == byteSize(input.dtype))
      fitting.push_back(pair);
  }
  return fitting;
}

std::vector<InPlace> elementwise(const StepSpec &spec) {
  std::vector<InPlace> fitting;
  for (size_t i = 0; i < spec.inputs.size(); ++i)
    for (InPlace pair : fittingPairs(spec, {{0, i}}))
      fitting.push_back(pair);
  return fitting;
}

std::vector<InPlace> sameNumber(const StepSpec &spec) {
  std::vector<InPlace> fitting;
  for (size_t i = 0; i < spec.outputs.size(); ++i)
    for (InPlace pair : fittingPairs(spec, {{i, i}}))
      fitting.push_back(pair);
  return fitting;
}

bool unlessConstant(const StepSpec &spec) {
  for (size_t i = 1; i < spec.inputs.size(); ++i)
    if (spec.inputs[i].present() && (i >= spec.constants.size() || !spec.constants[i].data))
      return true;
  return false;
}

const Entry *find(const StepSpec &spec) {
  const std::vector<Entry> &entries = allEntries();
  auto wanted = std::make_tuple(std::string_view(spec.domain), std::string_view(spec.op), spec.version);
  // The last entry that begins at or before the version is the only one that can hold it.
  auto after = std::upper_bound(entries.begin(), entries.end(), wanted,
                                [](const auto &value, const Entry &entry) { return value < key(entry); });
  if (after == entries.begin())
    return nullptr;
  const Entry &entry = *std::prev(after);
  bool matches = entry.domain == spec.domain && entry.op == spec.op && spec.version <= entry.sinceLast;
  return matches ? &entry : nullptr;
}

std::unique_ptr<Kernel> create(const StepSpec &spec, std::string &refusal) {
  const Entry *entry = find(spec);
  if (!entry) {
    refusal = "no kernel for " + (spec.domain.empty() ? "" : spec.domain + ".") + spec.op + " version " +
              std::to_string(spec.version);
    return nullptr;
  }
  for (const std::vector<TensorType> *types : {&spec.inputs, &spec.outputs})
    for (const TensorType &type : *types) {
      if (type.rank() > kMaxRank)
        refusal = "rank " + std::to_string(type.rank()) + " is above " + std::to_string(kMaxRank);
      else if (type.dtype == DType::String)
        refusal = "string tensors are not supported";
      else if (isFloat8(type.dtype) && !takesFloat8(spec.op))
        refusal = std::string(name(type.dtype)) + " is not supported";
      else
        continue;
      return nullptr;
    }
  if (entry->refuses) {
    refusal = entry->refuses(spec);
    if (!refusal.empty())
      return nullptr;
  }
  return std::make_unique<ReferenceKernel>(spec, *entry);
}

} // namespace recast::reference
