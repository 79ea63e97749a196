#include "passes/step/Optimizers.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include <limits>
#include <map>

namespace recast::step {

namespace {

using S = OptimizerSettings;
constexpr double kMost = std::numeric_limits<double>::max(); // no upper bound, but finite

OptimizerSettings with(double lr, void (*change)(S &) = nullptr) {
  OptimizerSettings settings;
  settings.lr = lr;
  if (change)
    change(settings);
  return settings;
}

llvm::Error wrong(const llvm::Twine &text) { return llvm::createStringError(text); }

std::string names() {
  return llvm::join(llvm::map_range(optimizerInfos(), [](const OptimizerInfo &o) { return o.name.str(); }), ", ");
}

// The two decays are one flag.
llvm::StringRef flagOf(llvm::StringRef setting) {
  return setting == "beta1" || setting == "beta2" ? llvm::StringRef("betas") : setting;
}

std::string flagsOf(const OptimizerInfo &info) {
  std::vector<std::string> flags;
  for (llvm::StringRef setting : info.settings)
    if (setting != "beta2")
      flags.push_back(("--" + flagOf(setting)).str());
  return llvm::join(flags, ", ");
}

llvm::Error readValue(const SettingInfo &info, llvm::StringRef value, OptimizerSettings &settings) {
  std::string given = (info.name + "=" + value).str();
  if (flagOf(info.name) != info.name)
    given = (flagOf(info.name) + ": " + given).str();
  if (info.flag) {
    if (value != "true" && value != "false")
      return wrong(given + ": true or false is needed");
    settings.*info.flag = value == "true";
    return llvm::Error::success();
  }
  double number;
  if (value.getAsDouble(number))
    return wrong(given + ": a number is needed");
  if (number >= info.low && (info.isBelowHigh ? number < info.high : number <= info.high)) {
    settings.*info.number = number;
    return llvm::Error::success();
  }
  std::string range;
  llvm::raw_string_ostream out(range);
  out << "from " << llvm::format("%g", info.low);
  if (info.high == kMost)
    out << " on";
  else
    out << (info.isBelowHigh ? " to below " : " to ") << llvm::format("%g", info.high);
  return wrong(given + ": a number " + range + " is needed");
}

// Combinations that torch.optim refuses.
llvm::Error checkTogether(const OptimizerSettings &settings) {
  if (settings.nesterov && (settings.momentum <= 0 || settings.dampening != 0))
    return wrong("nesterov needs --momentum above 0 and no --dampening");
  return llvm::Error::success();
}

} // namespace

llvm::ArrayRef<SettingInfo> settingInfos() {
  static const SettingInfo infos[] = {
      {"lr", "Learning rate", &S::lr, nullptr, 0, kMost},
      {"beta1", "Decay of the first moment", &S::beta1, nullptr, 0, 1, true},
      {"beta2", "Decay of the second moment", &S::beta2, nullptr, 0, 1, true},
      {"eps", "Added to the denominator of the update", &S::eps, nullptr, 0, kMost},
      {"weight-decay", "Weight decay", &S::weightDecay, nullptr, 0, kMost},
      {"momentum", "Momentum", &S::momentum, nullptr, 0, kMost},
      {"dampening", "Part of the gradient that momentum leaves out", &S::dampening, nullptr, 0, kMost},
      {"alpha", "Decay of the mean of squares", &S::alpha, nullptr, 0, 1},
      {"lr-decay", "Decay of the learning rate with the steps", &S::lrDecay, nullptr, 0, kMost},
      {"initial-accumulator", "Where the sum of squares starts", &S::initialAccumulator, nullptr, 0, kMost},
      {"momentum-decay", "Decay of the momentum", &S::momentumDecay, nullptr, 0, kMost},
      {"nesterov", "Nesterov momentum", nullptr, &S::nesterov},
      {"amsgrad", "Divide by the largest second moment so far", nullptr, &S::amsgrad},
      {"centered", "Divide by the deviation from the mean", nullptr, &S::centered},
      {"decoupled-weight-decay", "Decay the parameter, not the gradient", nullptr, &S::decoupledWeightDecay},
  };
  return infos;
}

// Defaults are those of torch.optim's constructors; lion's, those of its authors (github.com/google/automl, lion).
llvm::ArrayRef<OptimizerInfo> optimizerInfos() {
  static const std::vector<OptimizerInfo> infos = {
      {"adamw",
       {"lr", "beta1", "beta2", "eps", "weight-decay", "amsgrad"},
       with(1e-3, [](S &s) { s.weightDecay = 1e-2; })},
      {"adam", {"lr", "beta1", "beta2", "eps", "weight-decay", "amsgrad", "decoupled-weight-decay"}, with(1e-3)},
      {"sgd", {"lr", "momentum", "dampening", "nesterov", "weight-decay"}, with(1e-3)},
      {"adagrad",
       {"lr", "lr-decay", "weight-decay", "initial-accumulator", "eps"},
       with(1e-2, [](S &s) { s.eps = 1e-10; })},
      {"rmsprop", {"lr", "alpha", "eps", "weight-decay", "momentum", "centered"}, with(1e-2)},
      {"nadam",
       {"lr", "beta1", "beta2", "eps", "weight-decay", "momentum-decay", "decoupled-weight-decay"},
       with(2e-3)},
      {"radam", {"lr", "beta1", "beta2", "eps", "weight-decay", "decoupled-weight-decay"}, with(1e-3)},
      {"lion", {"lr", "beta1", "beta2", "weight-decay"}, with(1e-4, [](S &s) { s.beta2 = 0.99; })},
  };
  return infos;
}

llvm::Expected<OptimizerSettings> readSettings(llvm::StringRef optimizer, llvm::ArrayRef<std::string> given) {
  const auto *info = llvm::find_if(optimizerInfos(), [&](const OptimizerInfo &o) { return o.name == optimizer; });
  if (info == optimizerInfos().end())
    return wrong("optimizer=" + optimizer + ": there are " + names());
  OptimizerSettings settings = info->defaults;
  for (llvm::StringRef text : given) {
    auto [name, value] = text.split('=');
    const auto *setting = llvm::find_if(settingInfos(), [&](const SettingInfo &s) { return s.name == name; });
    if (setting == settingInfos().end() || !llvm::is_contained(info->settings, name))
      return wrong(flagOf(name) + ": " + optimizer + " does not use it; it has " + flagsOf(*info));
    if (llvm::Error error = readValue(*setting, value, settings))
      return error;
  }
  if (llvm::Error error = checkTogether(settings))
    return error;
  return settings;
}

std::string describeSetting(const SettingInfo &setting) {
  std::map<std::string, std::vector<std::string>> byDefault;
  std::vector<std::string> users;
  for (const OptimizerInfo &info : optimizerInfos()) {
    if (!llvm::is_contained(info.settings, setting.name))
      continue;
    users.push_back(info.name.str());
    std::string value;
    if (setting.number)
      llvm::raw_string_ostream(value) << llvm::format("%g", info.defaults.*setting.number);
    byDefault[value].push_back(info.name.str());
  }
  std::string text = setting.text.str() + " (" + llvm::join(users, ", ");
  if (setting.number && byDefault.size() == 1)
    text += "; default " + byDefault.begin()->first;
  else if (setting.number) {
    text = setting.text.str() + " (default: ";
    std::vector<std::string> groups;
    for (const auto &[value, optimizers] : byDefault)
      groups.push_back(llvm::join(optimizers, ", ") + " " + value);
    text += llvm::join(groups, "; ");
  }
  return text + ")";
}

} // namespace recast::step
