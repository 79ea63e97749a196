// The optimizers: which settings each has, and their defaults in torch.optim. One table for flags, passes and help.
#pragma once
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <string>
#include <vector>

namespace recast::step {

/// Names and meanings of torch.optim's arguments. An optimizer reads those that its table row lists.
struct OptimizerSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weightDecay = 0;
  double momentum = 0, dampening = 0, alpha = 0.99, lrDecay = 0, initialAccumulator = 0, momentumDecay = 4e-3;
  bool nesterov = false, amsgrad = false, centered = false, decoupledWeightDecay = false;
};

/// One setting: a number in [low, high], or [low, high) where `isBelowHigh`; or a switch.
struct SettingInfo {
  llvm::StringLiteral name; ///< In kebab case: the flag's name.
  llvm::StringLiteral text;
  double OptimizerSettings::*number; ///< Null for switches.
  bool OptimizerSettings::*flag = nullptr;
  double low = 0, high = 0;
  bool isBelowHigh = false;
};

struct OptimizerInfo {
  llvm::StringLiteral name;
  std::vector<llvm::StringRef> settings; ///< Names of those that it has.
  OptimizerSettings defaults;
};

llvm::ArrayRef<SettingInfo> settingInfos();
llvm::ArrayRef<OptimizerInfo> optimizerInfos();

/// The settings of `optimizer`: its defaults, and `given` in the form NAME=VALUE over them. An error, to be printed
/// after "--", for an unknown optimizer, a setting that it does not have, or a value out of range.
llvm::Expected<OptimizerSettings> readSettings(llvm::StringRef optimizer, llvm::ArrayRef<std::string> given);

/// "learning rate (default: 0.001; adagrad 0.01, ...)": for help texts.
std::string describeSetting(const SettingInfo &setting);

} // namespace recast::step
