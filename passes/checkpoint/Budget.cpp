#include "passes/checkpoint/Budget.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>

using llvm::StringRef;
namespace recast::checkpoint {

namespace {

template <typename... Args> llvm::Error error(const char *format, Args &&...args) {
  return llvm::createStringError(llvm::formatv(format, std::forward<Args>(args)...).str());
}

/// Digits and at most one point: no sign, exponent, inf or nan.
bool readNumber(StringRef text, double &number) {
  bool isPlain = !text.empty() && llvm::isDigit(text.front()) && text.count('.') <= 1 &&
                 llvm::all_of(text, [](char c) { return llvm::isDigit(c) || c == '.'; });
  return isPlain && !text.getAsDouble(number);
}

} // namespace

llvm::Expected<Budget> parseBudget(StringRef text) {
  if (text.empty())
    return Budget();
  if (text == "min")
    return Budget{Budget::Kind::Least, 0, 0};
  auto wrong = [&] { return error("{0}: a size above 0 (2GiB, 500MB, 4096), a part (60%) or min is needed", text); };
  StringRef rest = text;
  double number;
  if (rest.consume_back("%")) {
    if (!readNumber(rest, number) || !(number > 0 && number <= 100))
      return wrong();
    return Budget{Budget::Kind::Percent, 0, number};
  }
  double unit = 1;
  static constexpr std::pair<StringRef, double> kUnits[] = {
      {"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}, {"TB", 1e12},
      {"GB", 1e9},     {"MB", 1e6},     {"KB", 1e3},     {"kB", 1e3},     {"B", 1}};
  for (auto [suffix, factor] : kUnits)
    if (rest.consume_back(suffix)) {
      unit = factor;
      break;
    }
  // 2^53 bytes: beyond, a double does not hold every number.
  if (!readNumber(rest.rtrim(), number) || !(number * unit >= 1 && number * unit <= 0x1p53))
    return wrong();
  return Budget{Budget::Kind::Bytes, static_cast<int64_t>(number * unit), 0};
}

llvm::Expected<Policy> parsePolicy(StringRef text) {
  if (text == "auto")
    return Policy{Policy::Kind::Auto, 0, {}};
  if (text == "none")
    return Policy{Policy::Kind::None, 0, {}};
  if (text == "sqrt")
    return Policy{Policy::Kind::Sqrt, 0, {}};
  if (text == "selective")
    return Policy{Policy::Kind::Selective, 0, {}};
  auto wrong = [&] {
    return error("{0}: auto, none, every-N (N operators, from 1 up), sqrt, selective or GLOB,... is needed", text);
  };
  StringRef rest = text;
  if (rest.consume_front("every-")) {
    int count;
    if (rest.getAsInteger(10, count) || count < 1)
      return wrong();
    return Policy{Policy::Kind::EveryN, count, {}};
  }
  llvm::SmallVector<StringRef> globs;
  text.split(globs, ',');
  Policy policy{Policy::Kind::Names, 0, {}};
  for (StringRef glob : globs) {
    if (glob.empty())
      return wrong();
    policy.globs.push_back(glob.str());
  }
  return policy;
}

std::string formatBytes(int64_t bytes) {
  static constexpr const char *kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 1024 && unit + 1 < std::size(kUnits); ++unit)
    number /= 1024;
  return unit == 0 ? std::to_string(bytes) + " bytes" : llvm::formatv("{0:f2} {1}", number, kUnits[unit]).str();
}

} // namespace recast::checkpoint
