#include "tools/recast-opt/OptimizerFlags.h"
#include "passes/step/Optimizers.h"
#include "llvm/ADT/STLExtras.h"

namespace recast::tools {

namespace {

namespace cl = llvm::cl;

bool isBeta(llvm::StringRef name) { return name == "beta1" || name == "beta2"; }

/// Help texts must outlive the flags.
llvm::StringRef helpOf(const step::SettingInfo &info) {
  static std::vector<std::unique_ptr<std::string>> texts;
  return *texts.emplace_back(std::make_unique<std::string>(step::describeSetting(info)));
}

} // namespace

OptimizerFlags::OptimizerFlags(cl::OptionCategory &category)
    : betas("betas", cl::CommaSeparated, cl::cat(category), cl::value_desc("BETA1,BETA2"),
            cl::desc("Decays of the moments (adamw, adam, nadam, radam; default 0.9,0.999; lion 0.9,0.99)")) {
  for (const step::SettingInfo &info : step::settingInfos()) {
    if (isBeta(info.name))
      continue;
    // A switch may stand without a value.
    flags.push_back(std::make_unique<cl::opt<std::string>>(
        llvm::StringRef(info.name), cl::desc(helpOf(info)), cl::value_desc(info.flag ? "true|false" : "number"),
        info.flag ? cl::ValueOptional : cl::ValueRequired, cl::cat(category)));
    if (info.name == "initial-accumulator")
      accumulator = std::make_unique<cl::alias>("initial-accumulator-value", cl::desc("The same, by PyTorch's name"),
                                                cl::aliasopt(*flags.back()), cl::cat(category));
  }
}

std::string OptimizerFlags::read(llvm::StringRef optimizer, std::vector<std::string> &settings) const {
  settings.clear();
  for (const auto &flag : flags)
    if (flag->getNumOccurrences()) {
      const auto *info =
          llvm::find_if(step::settingInfos(), [&](const step::SettingInfo &s) { return s.name == flag->ArgStr; });
      settings.push_back(
          (flag->ArgStr + "=" + (info->flag && flag->empty() ? std::string("true") : flag->getValue())).str());
    }
  if (!betas.empty()) {
    if (betas.size() != 2)
      return "--betas: two numbers are needed, for instance --betas=0.9,0.999";
    settings.push_back("beta1=" + betas[0]);
    settings.push_back("beta2=" + betas[1]);
  }
  auto read = step::readSettings(optimizer, settings);
  return read ? "" : "--" + llvm::toString(read.takeError());
}

} // namespace recast::tools
