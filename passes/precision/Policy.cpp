#include "passes/precision/Policy.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/YAMLParser.h"
#include "llvm/Support/YAMLTraits.h"

using namespace llvm;
using namespace recast::onnx_ir;
using recast::precision::Rule;
using recast::precision::TensorRange;
using recast::precision::ValueRange;

namespace {

// A file as it is written: presets and users' policies have the same form.
struct PolicyFile {
  std::string low, base;
  std::vector<Rule> rules;
  std::vector<TensorRange> ranges;
};

// What reading needs to know.
struct Reading {
  StringRef low; ///< The type that the file may ask for.
  MemoryBufferRef text;
};

struct Preset {
  StringLiteral name, text;
};
constexpr Preset kPresets[] = {
#include "passes/precision/Presets.inc"
};

const Preset *findPreset(StringRef name) {
  auto found = find_if(kPresets, [&](const Preset &preset) { return preset.name == name; });
  return found == std::end(kPresets) ? nullptr : found;
}

// "file:line" of the entry that is being read.
std::string place(yaml::IO &io) {
  const auto &reading = *static_cast<const Reading *>(io.getContext());
  const char *at = static_cast<yaml::Input &>(io).getCurrentNode()->getSourceRange().Start.getPointer();
  StringRef before(reading.text.getBufferStart(), static_cast<size_t>(at - reading.text.getBufferStart()));
  return (sys::path::filename(reading.text.getBufferIdentifier()) + ":" + Twine(before.count('\n') + 1)).str();
}

// `range: [lo, hi]` or `max-abs: x`.
struct RangeKeys {
  std::vector<double> bounds;
  std::optional<double> maxAbs;

  void map(yaml::IO &io) {
    io.mapOptional("range", bounds);
    io.mapOptional("max-abs", maxAbs);
  }
  std::string problem() const {
    if (!bounds.empty() && maxAbs)
      return "'range' and 'max-abs' say the same: give one of them";
    if (!bounds.empty() && (bounds.size() != 2 || !(bounds[0] <= bounds[1])))
      return "'range' is [least, greatest]";
    if (maxAbs && !(*maxAbs >= 0))
      return "'max-abs' is a magnitude, at least 0";
    return {};
  }
  std::optional<ValueRange> range() const {
    if (maxAbs)
      return ValueRange{-*maxAbs, *maxAbs};
    return bounds.size() == 2 ? std::optional(ValueRange{bounds[0], bounds[1]}) : std::nullopt;
  }
};

} // namespace

LLVM_YAML_IS_SEQUENCE_VECTOR(Rule)
LLVM_YAML_IS_SEQUENCE_VECTOR(TensorRange)

namespace llvm::yaml {

template <> struct ScalarTraits<AutocastClass> {
  static void output(const AutocastClass &, void *, raw_ostream &) {}
  static StringRef input(StringRef text, void *, AutocastClass &value) {
    auto found = StringSwitch<std::optional<AutocastClass>>(text)
                     .Case("low", AutocastClass::Low)
                     .Case("fp32", AutocastClass::Fp32)
                     .Case("promote", AutocastClass::Promote)
                     .Case("neutral", AutocastClass::Neutral)
                     .Case("never", AutocastClass::Never)
                     .Default(std::nullopt);
    if (!found)
      return "unknown class: low, fp32, promote, neutral or never is needed";
    value = *found;
    return {};
  }
  static QuotingType mustQuote(StringRef) { return QuotingType::None; }
};

template <> struct MappingTraits<Rule> {
  static void mapping(IO &io, Rule &rule) {
    rule.source = place(io);
    std::string constants;
    RangeKeys range;
    io.mapOptional("op", rule.op);
    io.mapOptional("name", rule.name);
    io.mapOptional("versions", rule.versions);
    io.mapOptional("rank", rule.rank);
    io.mapOptional("class", rule.autocast);
    io.mapOptional("constants", constants);
    range.map(io);
    rule.range = range.range();
    rule.saturates = constants == "saturate";
    if (std::string problem = range.problem(); !problem.empty())
      io.setError(problem);
    if (!constants.empty() && !rule.saturates && constants != "keep")
      io.setError("unknown way with constants: keep or saturate is needed");
  }
  static std::string validate(IO &, Rule &rule) {
    if (rule.op.empty() && rule.name.empty())
      return "a rule needs 'op' or 'name'";
    if (!rule.autocast && !rule.range)
      return "a rule needs 'class', or 'range' or 'max-abs'";
    if (!rule.op.empty() && !StringRef(rule.op).starts_with("train.") && !onnx::OpSchemaRegistry::Schema(rule.op))
      return "ONNX has no operator '" + rule.op + "'";
    if (!rule.versions.empty() && (rule.versions.size() != 2 || rule.versions[0] > rule.versions[1]))
      return "'versions' is [first, last]";
    return {};
  }
};

template <> struct MappingTraits<TensorRange> {
  static void mapping(IO &io, TensorRange &entry) {
    entry.source = place(io);
    RangeKeys range;
    io.mapRequired("tensor", entry.tensor);
    range.map(io);
    if (std::string problem = range.problem(); !problem.empty())
      io.setError(problem);
    else if (auto bounds = range.range())
      entry.range = *bounds;
    else
      io.setError("a tensor needs 'range' or 'max-abs'");
  }
};

template <> struct MappingTraits<PolicyFile> {
  static void mapping(IO &io, PolicyFile &file) {
    io.mapOptional("low", file.low);
    io.mapOptional("base", file.base);
    io.mapOptional("rules", file.rules);
    io.mapOptional("ranges", file.ranges);
  }
  static std::string validate(IO &io, PolicyFile &file) {
    StringRef wanted = static_cast<const Reading *>(io.getContext())->low;
    if (!file.low.empty() && file.low != wanted)
      return ("'low' is " + file.low + ", --precision is " + wanted).str();
    if (!file.base.empty() && !findPreset(file.base))
      return "'base' is " + file.base + ": cuda or cpu is needed";
    return {};
  }
};

} // namespace llvm::yaml

namespace recast::precision {

namespace {

Expected<PolicyFile> parse(MemoryBufferRef text, StringRef low) {
  std::string message;
  auto keepFirst = [](const SMDiagnostic &diagnostic, void *context) {
    auto &kept = *static_cast<std::string *>(context);
    if (kept.empty())
      kept = (diagnostic.getFilename() + ":" + Twine(diagnostic.getLineNo()) + ": " + diagnostic.getMessage()).str();
  };
  Reading reading{low, text};
  yaml::Input input(text, /*Ctxt=*/&reading, keepFirst, &message);
  PolicyFile file;
  input >> file;
  if (input.error())
    return createStringError(input.error(),
                             message.empty() ? (text.getBufferIdentifier() + ":1: no YAML").str() : message);
  return file;
}

} // namespace

bool ValueRange::fits(mlir::Type type) const {
  const fltSemantics &semantics = mlir::cast<mlir::FloatType>(type).getFloatSemantics();
  return all_of(std::array{low, high}, [&](double bound) {
    APFloat rounded(bound);
    bool losesInfo;
    rounded.convert(semantics, APFloat::rmNearestTiesToEven, &losesInfo);
    return rounded.isFinite();
  });
}

bool Rule::matches(Node node) const {
  if (StringRef wanted = op; wanted.consume_front("train.")) {
    if (node.domain() != "recast" || node.opType() != wanted)
      return false;
  } else if (!op.empty() && !node.is(op)) {
    return false;
  }
  if (!name.empty()) {
    StringRef label = node.name();
    if (label.empty() && node.numOutputs())
      label = nameOf(node.output());
    if (!gradient::matchesGlob(name, label))
      return false;
  }
  if (rank >= 0) {
    auto type = node.input(0) ? mlir::dyn_cast<mlir::RankedTensorType>(node.input(0).getType()) : nullptr;
    if (!type || type.getRank() != rank)
      return false;
  }
  if (versions.empty())
    return true;
  int64_t since = node.sinceVersion();
  return versions[0] <= since && since <= versions[1];
}

Expected<Policy> Policy::load(StringRef low, StringRef choice) {
  if (low != "bf16" && low != "f16" && low != "tf32")
    return createStringError("--precision=" + low + ": policies are about the low types bf16, f16 and tf32");
  Policy policy;
  std::string base = choice.empty() ? "cuda" : choice.str();
  if (!findPreset(base)) {
    base = "cuda";
    auto buffer = MemoryBuffer::getFile(choice, /*IsText=*/true);
    if (!buffer)
      return createStringError(buffer.getError(), "--policy=" + choice + ": " + buffer.getError().message() +
                                                      " (cuda and cpu are built in, everything else is a file)");
    auto file = parse((*buffer)->getMemBufferRef(), low);
    if (!file)
      return file.takeError();
    policy.rules = std::move(file->rules);
    policy.ranges = std::move(file->ranges);
    if (!file->base.empty())
      base = file->base;
  }
  policy.used.resize(policy.rules.size());
  policy.usedRanges.resize(policy.ranges.size());
  const Preset &preset = *findPreset(base);
  auto builtIn = parse(MemoryBufferRef(preset.text, (base + ".yaml")), low);
  if (!builtIn)
    return builtIn.takeError();
  llvm::append_range(policy.rules, builtIn->rules);
  return policy;
}

std::optional<Ruling> Policy::find(Node node, mlir::Type low) {
  std::string op = ((node.domain() == "recast" ? "train." : "") + node.opType()).str();
  for (auto [i, rule] : enumerate(rules)) {
    if ((!rule.op.empty() && rule.op != op) || !rule.matches(node))
      continue;
    if (i < used.size())
      used[i] = true;
    bool exceeds = rule.range && !rule.range->fits(low);
    if (exceeds || rule.autocast)
      return Ruling{exceeds ? AutocastClass::Fp32 : *rule.autocast, rule.source, rule.saturates, exceeds};
  }
  return std::nullopt;
}

std::optional<AutocastClass> Policy::findNamed(Node node) const {
  for (const Rule &rule : ArrayRef(rules).take_front(used.size()))
    if (!rule.name.empty() && rule.autocast && rule.matches(node))
      return rule.autocast;
  return std::nullopt;
}

const TensorRange *Policy::rangeOf(StringRef tensor) {
  for (auto [i, entry] : enumerate(ranges))
    if (gradient::matchesGlob(entry.tensor, tensor)) {
      usedRanges[i] = true;
      return &entry;
    }
  return nullptr;
}

std::vector<std::string> Policy::unusedNames() const {
  std::vector<std::string> names;
  for (auto [i, isUsed] : enumerate(used))
    if (!isUsed && !rules[i].name.empty())
      names.push_back(rules[i].name);
  for (auto [i, isUsed] : enumerate(usedRanges))
    if (!isUsed)
      names.push_back(ranges[i].tensor);
  return names;
}

} // namespace recast::precision
