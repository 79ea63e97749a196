#include "passes/precision/Policy.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/YAMLTraits.h"

using namespace llvm;
using namespace recast::onnx_ir;
using recast::precision::Rule;

namespace {

// A file as it is written: presets and users' policies have the same form.
struct PolicyFile {
  std::string low;
  std::vector<Rule> rules;
};

struct Preset {
  StringLiteral name, text;
};
constexpr Preset kPresets[] = {
#include "passes/precision/Presets.inc"
};

} // namespace

LLVM_YAML_IS_SEQUENCE_VECTOR(Rule)

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
    io.mapOptional("op", rule.op);
    io.mapOptional("name", rule.name);
    io.mapOptional("versions", rule.versions);
    io.mapRequired("class", rule.autocast);
  }
  static std::string validate(IO &, Rule &rule) {
    if (rule.op.empty() && rule.name.empty())
      return "a rule needs 'op' or 'name'";
    if (!rule.op.empty() && !onnx::OpSchemaRegistry::Schema(rule.op))
      return "ONNX has no operator '" + rule.op + "'";
    if (!rule.versions.empty() && (rule.versions.size() != 2 || rule.versions[0] > rule.versions[1]))
      return "'versions' is [first, last]";
    return {};
  }
};

template <> struct MappingTraits<PolicyFile> {
  static void mapping(IO &io, PolicyFile &file) {
    io.mapOptional("low", file.low);
    io.mapOptional("rules", file.rules);
  }
  static std::string validate(IO &io, PolicyFile &file) {
    StringRef wanted = *static_cast<const StringRef *>(io.getContext());
    if (file.low.empty() || file.low == wanted)
      return {};
    return ("'low' is " + file.low + ", --precision is " + wanted).str();
  }
};

} // namespace llvm::yaml

namespace recast::precision {

namespace {

// `low` is the type that the file may ask for.
Expected<PolicyFile> parse(MemoryBufferRef text, StringRef low) {
  std::string message;
  auto keepFirst = [](const SMDiagnostic &diagnostic, void *context) {
    auto &kept = *static_cast<std::string *>(context);
    if (kept.empty())
      kept = (diagnostic.getFilename() + ":" + Twine(diagnostic.getLineNo()) + ": " + diagnostic.getMessage()).str();
  };
  yaml::Input input(text, /*Ctxt=*/&low, keepFirst, &message);
  PolicyFile file;
  input >> file;
  if (input.error())
    return createStringError(input.error(),
                             message.empty() ? (text.getBufferIdentifier() + ":1: no YAML").str() : message);
  return file;
}

} // namespace

bool Rule::matches(Node node) const {
  if (!op.empty() && !node.is(op))
    return false;
  if (!name.empty()) {
    StringRef label = node.name();
    if (label.empty() && node.numOutputs())
      label = nameOf(node.output());
    if (!gradient::matchesGlob(name, label))
      return false;
  }
  if (versions.empty())
    return true;
  int64_t since = node.sinceVersion();
  return versions[0] <= since && since <= versions[1];
}

Expected<Policy> Policy::load(StringRef low, StringRef path) {
  auto preset = find_if(kPresets, [&](const Preset &entry) { return entry.name == low; });
  if (preset == std::end(kPresets))
    return createStringError("--precision=" + low + ": autocast has the presets bf16 and f16");
  Policy policy;
  if (!path.empty()) {
    auto buffer = MemoryBuffer::getFile(path, /*IsText=*/true);
    if (!buffer)
      return createStringError(buffer.getError(), "--policy=" + path + ": " + buffer.getError().message());
    auto file = parse((*buffer)->getMemBufferRef(), low);
    if (!file)
      return file.takeError();
    policy.rules = std::move(file->rules);
  }
  policy.used.resize(policy.rules.size());
  auto builtIn = parse(MemoryBufferRef(preset->text, preset->name), low);
  if (!builtIn)
    return builtIn.takeError();
  llvm::append_range(policy.rules, builtIn->rules);
  return policy;
}

std::optional<AutocastClass> Policy::find(Node node) {
  for (auto [i, rule] : enumerate(rules))
    if (rule.matches(node)) {
      if (i < used.size())
        used[i] = true;
      return rule.autocast;
    }
  return std::nullopt;
}

std::optional<AutocastClass> Policy::findNamed(Node node) const {
  for (const Rule &rule : ArrayRef(rules).take_front(used.size()))
    if (!rule.name.empty() && rule.matches(node))
      return rule.autocast;
  return std::nullopt;
}

std::vector<std::string> Policy::unusedNames() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i] && !rules[i].name.empty())
      names.push_back(rules[i].name);
  return names;
}

} // namespace recast::precision
